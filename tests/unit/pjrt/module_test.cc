// The bytes of a "stablehlo" program: whole and consistent, or refused.
#include "runtime/pjrt/module.h"

#include <gtest/gtest.h>

namespace tpu::pjrt {
namespace {

Module Example() {
  Module module;
  module.text = "module {}";
  module.outputs = {{false, 0}, {true, 2}, {false, 1}, {false, 0}};
  module.results = 2;
  module.checked = true;
  module.donors = {-1, 2};
  return module;
}

bool Parses(const Module& module) { return Module::Parse(module.Serialize()).ok(); }

TEST(Module, ComesBackAsItWas) {
  const auto parsed = Module::Parse(Example().Serialize());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->Serialize(), Example().Serialize());
}

TEST(Module, EveryTruncationIsRefused) {
  const std::string bytes = Example().Serialize();
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(Module::Parse(bytes.substr(0, size)).ok()) << size;
}

TEST(Module, RefusesOutputsThatAreNoResultsAndResultsThatAreNoOutput) {
  Module beyond = Example();
  beyond.outputs[2].index = 2;
  EXPECT_FALSE(Parses(beyond));
  Module unread = Example();
  unread.outputs[2].index = 0;
  EXPECT_FALSE(Parses(unread));
}

}  // namespace
}  // namespace tpu::pjrt

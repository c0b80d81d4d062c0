// Plugins that can't be used: each failure is an error that names the plugin and says what is wrong.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "runtime/pjrt/aot.h"
#include "runtime/pjrt/pjrt_device.h"

namespace tpu::pjrt {
namespace {

absl::Status Use(const std::string& plugin, const char* mode, int timeout_seconds = 60) {
  setenv("FAKE_PLUGIN", mode, 1);
  return MakeDevices({.plugin = plugin, .timeout_seconds = timeout_seconds}).status();
}

void ExpectError(const absl::Status& status, const std::string& plugin, const std::string& why) {
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(plugin), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find(why), absl::string_view::npos) << status;
}

TEST(Plugin, TooOld) { ExpectError(Use(FAKE_PLUGIN_PATH, "too_old"), FAKE_PLUGIN_PATH, "too old"); }
TEST(Plugin, TooNew) { ExpectError(Use(FAKE_PLUGIN_PATH, "too_new"), FAKE_PLUGIN_PATH, "too new"); }
TEST(Plugin, MissingFunction) {
  ExpectError(Use(FAKE_PLUGIN_PATH, "missing"), FAKE_PLUGIN_PATH, "has no function PJRT_Client_Create");
}
TEST(Plugin, WithoutDevices) { ExpectError(Use(FAKE_PLUGIN_PATH, ""), FAKE_PLUGIN_PATH, "has no device"); }
TEST(Plugin, Hangs) { ExpectError(Use(FAKE_PLUGIN_PATH, "hang", 1), FAKE_PLUGIN_PATH, "hangs"); }

TEST(Plugin, ReturnsErrorsWhichAreDestroyed) {
  const absl::Status status = Use(FAKE_PLUGIN_PATH, "error");
  ExpectError(status, FAKE_PLUGIN_PATH, "the fake chip is on fire");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  void* plugin = dlopen(FAKE_PLUGIN_PATH, RTLD_LAZY);
  EXPECT_EQ(reinterpret_cast<int (*)()>(dlsym(plugin, "FakePluginLiveErrors"))(), 0);
}

TEST(PluginDeathTest, AbortsAndIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)Use(FAKE_PLUGIN_PATH, "abort"), "PJRT plugin .*fake_plugin.* aborted the process");
}

TEST(Plugin, IsNoPlugin) {
  ExpectError(Use("libm.so.6", ""), "libm.so.6", "is no PJRT plugin");
  ExpectError(Use("/nowhere/plugin.so", ""), "/nowhere/plugin.so", "can't be loaded");
}

TEST(Plugin, OfAnotherArchitecture) {
  // A library's header for another machine: what the loader looks at first.
  const std::string path = testing::TempDir() + "other_machine.so";
  std::ifstream in(FAKE_PLUGIN_PATH, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  bytes[18] = '\xb7';  // e_machine: AArch64
  bytes[19] = 0;
  std::ofstream(path, std::ios::binary) << bytes;
  ExpectError(Use(path, ""), path, "can't be loaded");
}

TEST(Plugin, DescribesItself) {
  setenv("FAKE_PLUGIN", "", 1);
  auto described = DescribePlugin(FAKE_PLUGIN_PATH, 60);
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_EQ((*described)["pjrt_api_version"], "0.81");
  EXPECT_EQ((*described)["stablehlo_current_version"], "1.13.0");
}

}  // namespace
}  // namespace tpu::pjrt

// Plugins that can't be used: each failure is an error that names the plugin and says what is wrong.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/pjrt/aot.h"
#include "runtime/pjrt/module.h"
#include "runtime/pjrt/pjrt_device.h"
#include "runtime/stream.h"

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

TEST(Plugin, TakesItsOptionsByName) {
  setenv("FAKE_PLUGIN", "options", 1);
  const absl::Status status =
      MakeDevices({.plugin = FAKE_PLUGIN_PATH, .options = "size=4,quick=true,name=a b=c"}).status();
  ExpectError(status, FAKE_PLUGIN_PATH, "size=int 4; quick=bool 1; name=string a b=c; ");
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

// A device of a plugin that comes up and then fails as `mode` says, and a program of f32[2] -> f32[2] for it.
std::unique_ptr<Device> FailingDevice(const char* mode) {
  setenv("FAKE_PLUGIN", mode, 1);
  auto devices = MakeDevices({.plugin = FAKE_PLUGIN_PATH});
  EXPECT_TRUE(devices.ok()) << devices.status();
  return devices.ok() ? std::move(devices->front()) : nullptr;
}
const TensorType kPair{DType::kFloat32, {2}};
Program AnyProgram() {
  Module module;
  module.text = "module";
  module.outputs = {{false, 0}};
  module.results = 1;
  module.donors = {-1};
  return {.format = kFormat, .bytes = module.Serialize(), .inputs = {kPair}, .outputs = {kPair}};
}

TEST(Plugin, ErrorsOfCompilingNameIt) {
  ExpectError(FailingDevice("compile_error")->Load(AnyProgram()).status(), FAKE_PLUGIN_PATH, "PJRT_Client_Compile");
}

TEST(Plugin, ErrorsOfExecutingNameIt) {
  const auto device = FailingDevice("execute_error");
  const auto executable = *device->Load(AnyProgram());
  Argument input[] = {{.buffer = *device->MakeValue(kPair, nullptr)}};
  BufferRef output[1];
  ExpectError(executable->Launch(absl::MakeSpan(input), absl::MakeSpan(output), nullptr), FAKE_PLUGIN_PATH,
              "PJRT_LoadedExecutable_Execute: the fake chip is on fire");
}

TEST(Plugin, ErrorsThatComeLaterBelongToTheResults) {
  const auto device = FailingDevice("late_error");
  const auto executable = *device->Load(AnyProgram());
  Argument input[] = {{.buffer = *device->MakeValue(kPair, nullptr)}};
  BufferRef output[1];
  const auto explain = [](const absl::Status& s) {
    return absl::Status(s.code(), absl::StrCat(s.message(), " in line 7"));
  };
  ASSERT_TRUE(executable->Launch(absl::MakeSpan(input), absl::MakeSpan(output), nullptr, explain).ok());
  ExpectError(device->Wait(output[0]), FAKE_PLUGIN_PATH, "the fake chip is on fire in line 7");
}

TEST(Plugin, EventsWaitForTheirOwnStreamsLaunches) {
  const auto device = FailingDevice("stuck");
  const auto executable = *device->Load(AnyProgram());
  std::vector<BufferRef> results(2);
  Stream busy(device.get(), 1), other(device.get(), 2);
  const auto launch = [&](BufferRef& result) {
    Argument input[] = {{.buffer = *device->MakeValue(kPair, nullptr)}};
    EXPECT_TRUE(executable->Launch(absl::MakeSpan(input), absl::MakeSpan(&result, 1), nullptr).ok());
  };
  busy.WaitFor(busy.Enqueue([&] { launch(results[0]); }));  // the plugin does not end it
  Event after_busy, after_other;
  after_busy.Record(busy);
  other.Enqueue([&] { launch(results[1]); });
  after_other.Record(other);
  std::thread late(
      [release = reinterpret_cast<void (*)()>(dlsym(dlopen(FAKE_PLUGIN_PATH, RTLD_LAZY), "FakePluginRelease")),
       &after_other, &after_busy] {
        for (int i = 0; i < 5000 && !after_other.Query(); ++i)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_TRUE(after_other.Query()) << "it waits for another stream's launch";
        EXPECT_FALSE(after_busy.Query());
        release();
      });
  other.Synchronize();
  EXPECT_TRUE(other.Idle());
  late.join();
  busy.Synchronize();
  EXPECT_TRUE(after_busy.Query());
  device->Synchronize(nullptr);
}

TEST(Plugin, TellsTheMemoryThatItCounts) {
  const auto device = FailingDevice("late_error");
  const BufferRef buffer = *device->MakeValue(kPair, nullptr);
  const MemoryStats stats = device->memory_stats();
  EXPECT_EQ(stats.allocated_bytes, 8);
  EXPECT_EQ(stats.reserved_bytes, 3000);
  EXPECT_EQ(stats.peak_reserved_bytes, 4000);
  EXPECT_EQ(stats.limit_bytes, 1 << 20);
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

#include "runtime/flags.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

namespace tpu {
namespace {

Flags With(const char* name, const char* value) {
  setenv(name, value, 1);
  Flags flags = Flags::FromEnvironment();
  unsetenv(name);
  return flags;
}

TEST(Flags, ReadsSizes) {
  EXPECT_EQ(With("TORCH_TPU_MEMORY", "4GiB").memory_bytes, int64_t{4} << 30);
  EXPECT_EQ(With("TORCH_TPU_MEMORY", "1.5g").memory_bytes, int64_t{3} << 29);
  EXPECT_EQ(With("TORCH_TPU_MEMORY", "512 MB").memory_bytes, 512 << 20);
  EXPECT_EQ(With("TORCH_TPU_MEMORY", "4096").memory_bytes, 4096);
  EXPECT_EQ(With("TORCH_TPU_MEMORY", "100B").memory_bytes, 100);
}

TEST(Flags, ABadValueIsToldAndTheDefaultUsed) {
  for (const char* bad : {"lots", "4XiB", "-1", "1e30TiB", "4GiBs"}) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(With("TORCH_TPU_MEMORY", bad).memory_bytes, 0);
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_NE(told.find("TORCH_TPU_MEMORY"), std::string::npos) << bad;
    EXPECT_NE(told.find(bad), std::string::npos);
  }
  testing::internal::CaptureStderr();
  EXPECT_EQ(With("TORCH_TPU_DEVICES", "129").devices, 1);
  EXPECT_EQ(With("TORCH_TPU_COMPILE_THREADS", "100000").compile_threads, 0);
  EXPECT_EQ(With("TORCH_TPU_MODE", "quick").mode, "fused");
  EXPECT_NE(testing::internal::GetCapturedStderr().find("one of fused,strict,debug"), std::string::npos);
}

TEST(Flags, AnEmptyVariableIsAnUnsetOne) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(With("TORCH_TPU_DEVICES", "").devices, 1);
  setenv("LOCAL_WORLD_SIZE", "2", 1);
  EXPECT_EQ(With("TORCH_TPU_DEVICES", "").devices, 2);
  EXPECT_EQ(With("TORCH_TPU_DEVICES", "0").devices, 2);
  EXPECT_EQ(With("TORCH_TPU_DEVICES", "3").devices, 3);
  unsetenv("LOCAL_WORLD_SIZE");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Flags, ProgramsAreKeptInTheUsersDirectoryIfNoOtherIsNamed) {
  const char* const home = std::getenv("HOME");
  const std::string former = home != nullptr ? home : "";
  setenv("HOME", "/home/someone", 1);
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(With("TORCH_TPU_CACHE", "").cache_dir, "/home/someone/.cache/torch_tpu");
  EXPECT_EQ(With("TORCH_TPU_CACHE", "/a:/b").cache_dir, "/a:/b");
  EXPECT_EQ(With("TORCH_TPU_CACHE", ":").cache_dir, ":");
  EXPECT_EQ(With("XDG_CACHE_HOME", "/fast").cache_dir, "/fast/torch_tpu");
  unsetenv("HOME");
  EXPECT_EQ(With("TORCH_TPU_CACHE", "").cache_dir, "");
  if (home != nullptr) setenv("HOME", former.c_str(), 1);
}

TEST(Flags, EveryOneIsListedWithItsMeaning) {
  std::set<std::string> names;
  for (const FlagInfo& flag : Flags::All()) {
    EXPECT_EQ(flag.name.rfind("TORCH_TPU_", 0), 0u);
    EXPECT_FALSE(flag.meaning.empty());
    EXPECT_TRUE(names.insert(flag.name).second) << flag.name << " is there twice";
  }
  EXPECT_GE(names.size(), 11u);
}

}  // namespace
}  // namespace tpu

#include "runtime/machine.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace tpu {
namespace {

class Groups : public testing::Test {
 protected:
  ~Groups() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  GroupLimits Find() const { return FindGroupLimits(root_, root_ / "of_process"); }

  static std::string NewDirectory() {
    std::string name = testing::TempDir() + "/torch_tpu_groups_XXXXXX";
    return mkdtemp(name.data()) == nullptr ? "" : name;
  }
  const std::filesystem::path root_ = NewDirectory();
};

TEST_F(Groups, NoneLimitNothing) {
  EXPECT_EQ(Find().cores, GroupLimits().cores);
  Write("of_process", "0::/job\n");
  Write("job/cpu.max", "max 100000\n");
  Write("job/memory.max", "max\n");
  EXPECT_EQ(Find().cores, GroupLimits().cores);
  EXPECT_EQ(Find().bytes, GroupLimits().bytes);
}

TEST_F(Groups, TheLeastAroundTheProcessCounts) {
  Write("of_process", "0::/slice/job/step\n");
  Write("slice/cpu.max", "400000 100000\n");
  Write("slice/job/cpu.max", "150000 100000\n");
  Write("slice/job/step/cpu.max", "max 100000\n");
  Write("slice/memory.max", "1073741824\n");
  Write("slice/other/cpu.max", "10000 100000\n");
  EXPECT_EQ(Find().cores, 1.5);
  EXPECT_EQ(Find().bytes, int64_t{1} << 30);
}

TEST_F(Groups, OfVersionOneInAContainerThatSeesItsOwnAsTheUppermost) {
  Write("of_process", "5:memory:/docker/1234\n3:cpuacct,cpu:/docker/1234\nnothing\n");
  Write("cpu/cpu.cfs_quota_us", "50000\n");
  Write("cpu/cpu.cfs_period_us", "100000\n");
  Write("memory/memory.limit_in_bytes", "536870912\n");
  EXPECT_EQ(Find().cores, 0.5);
  EXPECT_EQ(Find().bytes, 512 << 20);
  Write("cpu/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(Find().cores, GroupLimits().cores);
  Write("memory/memory.limit_in_bytes", "0\n");
  EXPECT_EQ(Find().bytes, GroupLimits().bytes);
}

TEST(Instructions, AreThoseOfTheLevelAtMost) {
  const Instructions all = InstructionsUpTo("all"), v4 = InstructionsUpTo("x86-64-v4"),
                     v3 = InstructionsUpTo("x86-64-v3"), v2 = InstructionsUpTo("x86-64-v2");
  EXPECT_EQ(all.level, "");
  EXPECT_EQ(v2.level, "x86-64-v2");
  EXPECT_FALSE(v2.f16c || v2.avx2 || v2.avx512 || v2.avx512_bf16 || v2.amx_bf16);
  EXPECT_EQ(v3.level, all.avx2 ? "x86-64-v3" : "");
  EXPECT_EQ(v3.avx2, all.avx2);
  EXPECT_EQ(v3.f16c, all.f16c);
  EXPECT_FALSE(v3.avx512 || v3.avx512_bf16 || v3.amx_bf16);
  EXPECT_EQ(v4.level, all.avx512 ? "x86-64-v4" : "");
  EXPECT_EQ(v4.avx512, all.avx512);
  EXPECT_FALSE(v4.avx512_bf16 || v4.amx_bf16);
}

}  // namespace
}  // namespace tpu

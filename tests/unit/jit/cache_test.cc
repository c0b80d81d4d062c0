#include "jit/cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "gtest/gtest.h"

namespace tpu {
namespace {

namespace fs = std::filesystem;

class CacheTest : public testing::Test {
 protected:
  CacheTest() {
    std::string pattern = fs::temp_directory_path() / "tpu_cache_XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~CacheTest() override {
    fs::permissions(directory_, fs::perms::owner_all);
    fs::remove_all(directory_);
  }

  static Program Sample(size_t bytes = 1000) {
    Program p;
    p.format = "host";
    p.bytes = std::string(bytes, 'x');
    p.inputs = {{DType::kFloat32, {2, 3}}};
    p.outputs = {{DType::kInt64, {}}};
    return p;
  }
  std::string OnlyFile() const {
    for (const auto& e : fs::recursive_directory_iterator(directory_)) {
      if (e.is_regular_file()) return e.path();
    }
    return "";
  }

  const std::string key_ = "0123456789abcdef0123456789abcdef";
  std::string directory_;
};

TEST_F(CacheTest, GivesBackWhatWasStored) {
  ProgramCache cache({directory_}, 1 << 20);
  EXPECT_FALSE(cache.Load(key_));
  cache.Store(key_, Sample());
  const auto program = cache.Load(key_);
  ASSERT_TRUE(program);
  EXPECT_EQ(program->bytes, Sample().bytes);
  EXPECT_EQ(program->inputs, Sample().inputs);
  EXPECT_EQ(program->outputs, Sample().outputs);
}

TEST_F(CacheTest, ReadsAChainAndWritesItsHeadOnly) {
  const std::string first = directory_ + "/first", second = directory_ + "/second";
  ProgramCache({second}, 1 << 20).Store(key_, Sample());
  ProgramCache chain({first, second}, 1 << 20);
  EXPECT_TRUE(chain.Load(key_));
  const std::string other = "f" + key_.substr(1);
  chain.Store(other, Sample());
  EXPECT_TRUE(ProgramCache({first}, 1 << 20).Load(other));
  EXPECT_FALSE(ProgramCache({second}, 1 << 20).Load(other));
}

TEST_F(CacheTest, DamagedFilesAreMissesAndGo) {
  for (const char* how : {"truncate", "flip", "empty", "swap"}) {
    ProgramCache cache({directory_}, 1 << 20);
    cache.Store(key_, Sample());
    const std::string path = OnlyFile();
    if (how == std::string("truncate")) fs::resize_file(path, fs::file_size(path) / 2);
    if (how == std::string("empty")) fs::resize_file(path, 0);
    if (how == std::string("flip")) {
      std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
      f.seekp(40);
      f.put('\x7f');
    }
    if (how == std::string("swap")) {  // another key's whole file under this name
      std::ofstream(path, std::ios::binary) << ProgramCache::Encode("f" + key_.substr(1), Sample());
    }
    EXPECT_FALSE(cache.Load(key_)) << how;
    EXPECT_FALSE(fs::exists(path)) << how;
    cache.Store(key_, Sample());
    EXPECT_TRUE(cache.Load(key_)) << how;
    fs::remove(path);
  }
}

TEST_F(CacheTest, DecodeNeverTrustsDamage) {
  const std::string file = ProgramCache::Encode(key_, Sample(64));
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = file;
    damaged[random() % damaged.size()] ^= static_cast<char>(1 + random() % 255);
    EXPECT_FALSE(ProgramCache::Decode(key_, damaged));
    EXPECT_FALSE(ProgramCache::Decode(key_, file.substr(0, random() % file.size())));
  }
}

TEST_F(CacheTest, UnwritableOrMissingDirectoriesAreMisses) {
  std::ofstream(directory_ + "/file") << "not a directory";
  for (const std::string& bad : {directory_ + "/file", std::string("/proc/none/such"), std::string("/dev/full")}) {
    ProgramCache cache({bad}, 1 << 20);
    EXPECT_FALSE(cache.Load(key_)) << bad;
    cache.Store(key_, Sample());
    EXPECT_FALSE(cache.Load(key_)) << bad;
  }
  ProgramCache none({}, 1 << 20);
  none.Store(key_, Sample());
  EXPECT_FALSE(none.Load(key_));
}

TEST_F(CacheTest, StaysUnderItsCap) {
  constexpr int64_t kCap = 100'000;
  ProgramCache cache({directory_}, kCap);
  for (int i = 0; i < 100; ++i) {
    std::string key = key_;
    key[0] = static_cast<char>('a' + i % 16);
    key[5] = static_cast<char>('a' + i / 16);
    cache.Store(key, Sample(10'000));
  }
  int64_t total = 0;
  for (const auto& e : fs::recursive_directory_iterator(directory_)) {
    if (e.is_regular_file()) total += static_cast<int64_t>(e.file_size());
  }
  EXPECT_LE(total, kCap + kCap / 8);
  EXPECT_GT(total, 0);
}

TEST_F(CacheTest, ManyThreadsOneDirectory) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      ProgramCache cache({directory_}, 1 << 20);
      for (int i = 0; i < 50; ++i) {
        std::string key = key_;
        key[3] = static_cast<char>('a' + i % 8);
        cache.Store(key, Sample());
        const auto program = cache.Load(key);
        ASSERT_TRUE(program);
        EXPECT_EQ(program->bytes, Sample().bytes);
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace tpu

#include "runtime/host/allocator.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "runtime/fork.h"

namespace tpu::host {
namespace {

constexpr size_t kMiB = 1 << 20;

TEST(Allocator, GivesAlignedMemoryOfEverySize) {
  Allocator allocator("tpu:0", 1 << 30);
  std::vector<uintptr_t> handles;
  for (size_t bytes = 0; bytes < 300000; bytes = bytes < 3000 ? bytes + 1 : bytes + 997) {
    auto block = allocator.Allocate(bytes);
    ASSERT_TRUE(block.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block->data) % 64, 0u);
    std::memset(block->data, 0xab, bytes);
    handles.push_back(block->handle);
  }
  for (uintptr_t handle : handles) allocator.Free(handle);
  EXPECT_EQ(allocator.stats().allocated_bytes, 0);
}

TEST(Allocator, MakesHugePagesOfUsedMemoryAndLeavesWhatIsInIt) {
  Allocator allocator("tpu:0", 1 << 30, Allocator::Pages::kSmallFirst);
  EXPECT_FALSE(allocator.Settle());
  const size_t bytes = 9 * kMiB;
  auto block = allocator.Allocate(bytes), unused = allocator.Allocate(bytes);
  char* const data = static_cast<char*>(block->data);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i % 251);
  int made = 0;
  while (allocator.Settle()) ++made;
  EXPECT_LE(made, 5);  // of the second block none, or what it shares with the first
  for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(data[i], static_cast<char>(i % 251)) << i;
  allocator.Free(unused->handle);
  allocator.Free(block->handle);
  allocator.EmptyCache();
  EXPECT_FALSE(allocator.Settle());
  EXPECT_EQ(allocator.stats().reserved_bytes, 0);
}

TEST(Allocator, UsesFreedMemoryAgain) {
  Allocator allocator("tpu:0", 1 << 30);
  for (size_t bytes : {size_t{100}, size_t{40000}, 5 * kMiB, 50 * kMiB}) {
    auto first = allocator.Allocate(bytes);
    allocator.Free(first->handle);
    const MemoryStats before = allocator.stats();
    for (int i = 0; i < 100; ++i) {
      auto again = allocator.Allocate(bytes);
      EXPECT_EQ(again->data, first->data);
      allocator.Free(again->handle);
    }
    EXPECT_EQ(allocator.stats().num_system_allocs, before.num_system_allocs);
    EXPECT_EQ(allocator.stats().num_allocs, before.num_allocs + 100);
  }
}

TEST(Allocator, JoinsNeighboursThatAreFree) {
  Allocator allocator("tpu:0", 1 << 30);
  std::vector<Allocator::Allocation> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(*allocator.Allocate(4 * kMiB));  // one segment of 32 MiB
  EXPECT_EQ(allocator.stats().reserved_bytes, static_cast<int64_t>(32 * kMiB));
  for (int i : {1, 3, 5, 7, 0, 2, 6, 4}) allocator.Free(blocks[i].handle);
  auto whole = allocator.Allocate(32 * kMiB);
  EXPECT_EQ(whole->data, blocks[0].data);
  EXPECT_EQ(allocator.stats().num_system_allocs, 1);
  allocator.Free(whole->handle);
}

TEST(Allocator, CountsWhatIsLiveAndReserved) {
  Allocator allocator("tpu:0", 1 << 30);
  auto a = allocator.Allocate(10 * kMiB);
  auto b = allocator.Allocate(64);
  EXPECT_EQ(allocator.stats().allocated_bytes, static_cast<int64_t>(10 * kMiB + 64));
  allocator.Free(a->handle);
  EXPECT_EQ(allocator.stats().allocated_bytes, 64);
  EXPECT_EQ(allocator.stats().peak_allocated_bytes, static_cast<int64_t>(10 * kMiB + 64));
  EXPECT_EQ(allocator.stats().reserved_bytes, static_cast<int64_t>(12 * kMiB));
  allocator.ResetPeak();
  EXPECT_EQ(allocator.stats().peak_allocated_bytes, 64);
  allocator.EmptyCache();
  EXPECT_EQ(allocator.stats().reserved_bytes, static_cast<int64_t>(2 * kMiB)) << "the slab with the live block";
  allocator.Free(b->handle);
  allocator.EmptyCache();
  EXPECT_EQ(allocator.stats().reserved_bytes, 0);
  EXPECT_EQ(allocator.stats().peak_reserved_bytes, static_cast<int64_t>(12 * kMiB));
}

TEST(Allocator, FailsAtItsLimitWithTheNumbersAndGoesOn) {
  Allocator allocator("tpu:0", 8 * kMiB);
  auto a = allocator.Allocate(6 * kMiB);
  ASSERT_TRUE(a.ok());
  auto b = allocator.Allocate(3 * kMiB);
  EXPECT_EQ(b.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(b.status().message(),
            "TPU out of memory. Tried to allocate 3.00 MiB. tpu:0 has a total capacity of 8.00 MiB of which 2.00 MiB "
            "is free. 6.00 MiB is allocated, and 0 bytes is reserved but unallocated.");
  EXPECT_EQ(allocator.stats().num_ooms, 1);
  auto c = allocator.Allocate(2 * kMiB);
  EXPECT_TRUE(c.ok()) << "the rest fits exactly";
  EXPECT_FALSE(allocator.Allocate(1).ok());
  allocator.Free(a->handle);
  allocator.Free(c->handle);
  auto all = allocator.Allocate(8 * kMiB);
  EXPECT_TRUE(all.ok());
  allocator.Free(all->handle);
  EXPECT_FALSE(allocator.Allocate(SIZE_MAX).ok());
  EXPECT_FALSE(allocator.Allocate(size_t{1} << 62).ok());
}

TEST(Allocator, DropsItsCacheWhenThatStandsInTheWay) {
  Allocator allocator("tpu:0", 64 * kMiB);
  auto a = allocator.Allocate(20 * kMiB), b = allocator.Allocate(20 * kMiB), c = allocator.Allocate(20 * kMiB);
  for (auto* block : {&a, &b, &c}) allocator.Free((*block)->handle);
  auto large = allocator.Allocate(60 * kMiB);
  ASSERT_TRUE(large.ok());
  EXPECT_EQ(allocator.stats().reserved_bytes, static_cast<int64_t>(60 * kMiB));
  allocator.Free(large->handle);
}

TEST(Allocator, WhatGrowsLeavesNoneOfItsFormerSizes) {
  Allocator allocator("tpu:0", int64_t{1} << 40);
  auto block = allocator.Allocate(10 * kMiB);
  for (size_t bytes = 12 * kMiB; bytes <= 400 * kMiB; bytes += 2 * kMiB) {
    auto longer = allocator.Allocate(bytes);
    allocator.Free(block->handle);
    block = longer;
    if (bytes == 200 * kMiB) allocator.ResetPeak();
  }
  allocator.Free(block->handle);
  const MemoryStats stats = allocator.stats();
  EXPECT_LT(stats.peak_reserved_bytes, static_cast<int64_t>(2000 * kMiB));
  for (int i = 0; i < 100; ++i) {  // and what is taken again and again comes from what is there
    auto one = allocator.Allocate(350 * kMiB), other = allocator.Allocate(390 * kMiB);
    allocator.Free(one->handle);
    allocator.Free(other->handle);
  }
  EXPECT_LE(allocator.stats().num_system_allocs, stats.num_system_allocs + 1);
}

TEST(Allocator, WhatTheSystemRefusesIsAnErrorToo) {
  Allocator allocator("tpu:0", INT64_MAX);
  auto block = allocator.Allocate(size_t{1} << 55);
  EXPECT_EQ(block.status().code(), absl::StatusCode::kResourceExhausted);
  block = allocator.Allocate(100);
  EXPECT_TRUE(block.ok());
  allocator.Free(block->handle);
}

// Random sizes, each block filled with its own pattern: blocks never overlap, and nothing is lost.
void Churn(Allocator& allocator, unsigned seed, int rounds) {
  std::mt19937 random(seed);
  struct Held {
    Allocator::Allocation block;
    size_t bytes;
    unsigned char mark;
  };
  std::vector<Held> held;
  auto drop = [&](size_t i) {
    const auto* data = static_cast<const unsigned char*>(held[i].block.data);
    for (size_t at = 0; at < held[i].bytes; at += 509) ASSERT_EQ(data[at], held[i].mark);
    allocator.Free(held[i].block.handle);
    held[i] = held.back();
    held.pop_back();
  };
  for (int i = 0; i < rounds; ++i) {
    if (held.size() > 60 || (!held.empty() && random() % 3 == 0)) {
      drop(random() % held.size());
      continue;
    }
    const size_t bytes = random() % (size_t{1} << (random() % 22));
    auto block = allocator.Allocate(bytes);
    ASSERT_TRUE(block.ok());
    const auto mark = static_cast<unsigned char>(random());
    std::memset(block->data, mark, bytes);
    held.push_back({*block, bytes, mark});
    if (random() % 500 == 0) allocator.EmptyCache();
  }
  while (!held.empty()) drop(held.size() - 1);
}

TEST(Allocator, KeepsBlocksApartUnderChurn) {
  Allocator allocator("tpu:0", 1 << 30);
  Churn(allocator, 1, 20000);
  EXPECT_EQ(allocator.stats().allocated_bytes, 0);
  allocator.EmptyCache();
  EXPECT_EQ(allocator.stats().reserved_bytes, 0);
}

TEST(Allocator, ServesManyThreads) {
  Allocator allocator("tpu:0", 1 << 30);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) threads.emplace_back([&, t] { Churn(allocator, t, 3000); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator.stats().allocated_bytes, 0);
  allocator.EmptyCache();
  EXPECT_EQ(allocator.stats().reserved_bytes, 0);
}

#if !defined(__SANITIZE_THREAD__)  // its runtime refuses to go on in a forked child of a process with threads
TEST(Allocator, AForkedChildFreesWithoutWaitingForThreadsThatAreNotThere) {
  WatchForks();
  Allocator allocator("tpu:0", 1 << 30);
  auto held = allocator.Allocate(1000);
  ASSERT_TRUE(held.ok());
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) allocator.Free(allocator.Allocate(64)->handle);
  });
  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      allocator.Free(held->handle);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status)) {
      ADD_FAILURE() << "fork " << i << " hangs";
      break;
    }
  }
  stop = true;
  other.join();
  allocator.Free(held->handle);
}
#endif

}  // namespace
}  // namespace tpu::host

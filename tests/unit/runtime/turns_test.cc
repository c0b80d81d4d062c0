#include "runtime/host/turns.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace tpu::host {
namespace {

using Block = std::pair<int64_t, int64_t>;  // stage, row

TEST(Turns, AWalkOfItsOwnGoesThroughAllBlocks) {
  std::vector<Block> blocks;
  int64_t rows = 0;
  for (Walk walk(100, 32, 2); walk.Next(); walk.Done()) {
    blocks.emplace_back(walk.stage(), walk.row());
    rows += walk.rows();
  }
  EXPECT_EQ(blocks, (std::vector<Block>{{0, 0}, {0, 32}, {0, 64}, {0, 96}, {1, 0}, {1, 32}, {1, 64}, {1, 96}}));
  EXPECT_EQ(rows, 200);
}

TEST(Turns, AThreadTakesWhatAnotherLeavesFromTheEnd) {
  Turns turns(96, 16, 16, 2, 2, 2);  // rows 0 to 48 are the first thread's
  Walk other(turns, 1);
  ASSERT_TRUE(other.Next());
  EXPECT_EQ(Block(other.stage(), other.row()), Block(0, 48));
  other.Done();  // and comes no more
  std::vector<Block> blocks;
  for (Walk walk(turns, 0); walk.Next(); walk.Done()) blocks.emplace_back(walk.stage(), walk.row());
  EXPECT_EQ(blocks,
            (std::vector<Block>{
                {0, 0}, {0, 16}, {0, 32}, {1, 0}, {1, 16}, {1, 32}, {0, 80}, {0, 64}, {1, 80}, {1, 64}, {1, 48}}));
  EXPECT_FALSE(other.Next());
}

TEST(Turns, RowsAreSharedInMultiplesOfTheGrain) {
  Turns turns(50, 32, 16, 1, 1, 4);  // 16, 16, 16 and 2
  for (const auto& [thread, row, rows] : std::vector<std::array<int64_t, 3>>{{3, 48, 2}, {1, 16, 16}, {0, 0, 16}}) {
    Walk walk(turns, thread);
    ASSERT_TRUE(walk.Next());
    EXPECT_EQ(walk.row(), row);
    EXPECT_EQ(walk.rows(), rows);
    EXPECT_EQ(walk.rows_after(), 0);
    walk.Done();
  }
}

TEST(Turns, FewRowsLeaveThreadsWithoutAny) {
  Turns turns(20, 16, 16, 1, 1, 8);
  int64_t blocks = 0;
  for (int64_t thread = 7; thread >= 0; --thread) {
    for (Walk walk(turns, thread); walk.Next(); walk.Done()) ++blocks;
  }
  EXPECT_EQ(blocks, 2);
}

TEST(Turns, OnlyStagesOfAChainWaitForOneAnother) {
  Turns turns(32, 16, 16, 4, 2, 2);  // a block a thread, two chains of two stages
  Walk thief(turns, 0);
  for (int64_t stage = 0; stage < 4; ++stage) {
    ASSERT_TRUE(thief.Next());
    thief.Done();
  }
  ASSERT_TRUE(thief.Next());
  EXPECT_EQ(Block(thief.stage(), thief.row()), Block(0, 16));  // not done: its chain waits
  std::atomic<bool> waits{true};
  std::thread owner([&] {
    Walk walk(turns, 1);
    EXPECT_TRUE(walk.Next());
    EXPECT_FALSE(waits);
    EXPECT_EQ(Block(walk.stage(), walk.row()), Block(1, 16));
    EXPECT_TRUE(walk.Next());  // of the other chain, though the first isn't done
    EXPECT_EQ(Block(walk.stage(), walk.row()), Block(2, 16));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  waits = false;
  thief.Done();
  owner.join();
}

TEST(Turns, StagesOfABlockFollowOneAnotherOnWhicheverThread) {
  constexpr int64_t kRows = 70, kBlock = 8, kStages = 5, kThreads = 3;
  Turns turns(kRows, kBlock, 4, kStages, kStages, kThreads);
  std::vector<int64_t> stages(kRows);  // of each row, that are done: not atomic, the thread sanitizer watches
  std::atomic<int64_t> wrong{0};
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (Walk walk(turns, t); walk.Next(); walk.Done()) {
        if (t == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        for (int64_t row = walk.row(); row < walk.row() + walk.rows(); ++row) {
          wrong += stages[static_cast<size_t>(row)]++ != walk.stage();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(std::set<int64_t>(stages.begin(), stages.end()), std::set<int64_t>{kStages});
}

}  // namespace
}  // namespace tpu::host

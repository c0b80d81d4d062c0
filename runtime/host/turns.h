// How threads share work on rows that is done in stages, such as a product whose columns and depth are taken in parts:
// each has rows of its own, which it goes through stage by stage, block by block, as if it were alone; who has none
// left steals blocks from the ends of the others'. So all end at about the same time, though some lose their cores for
// a while. The blocks are the same whoever computes them.
//
// Stages come in chains, such as the passes that add to the same columns: of a chain, a block's next stage begins when
// its last one is done. Used by panel_gemm.cc. One Turns for all threads, a Walk for each.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "runtime/host/rounding.h"
#include "runtime/spin.h"

namespace tpu::host {

class Turns {
 public:
  // The last thread's rows are no more than the others', which are a multiple of `grain`. Chains have `chained` stages.
  Turns(int64_t rows, int64_t block_rows, int64_t grain, int64_t stages, int64_t chained, int64_t threads)
      : rows_(rows),
        block_rows_(block_rows),
        stages_(stages),
        chained_(chained),
        own_rows_(RoundUp(CeilDiv(rows, threads), grain)),
        owners_(CeilDiv(rows, own_rows_)),
        blocks_(CeilDiv(own_rows_, block_rows)),
        left_(static_cast<size_t>(owners_ * stages)),
        done_(static_cast<size_t>(owners_ * CeilDiv(stages, chained) * blocks_)) {
    for (int64_t i = 0; i < owners_ * stages; ++i) {
      const int64_t own = std::min(own_rows_, rows - i / stages * own_rows_);
      left_[static_cast<size_t>(i)] = static_cast<uint64_t>(CeilDiv(own, block_rows)) << 32;
    }
  }

 private:
  friend class Walk;

  // A block of the stage that no thread has taken yet, or -1: the first or last of this owner's.
  int64_t Take(int64_t owner, int64_t stage, bool first) {
    std::atomic<uint64_t>& left = left_[static_cast<size_t>(owner * stages_ + stage)];
    uint64_t range = left.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t begin = range & 0xffffffff, end = range >> 32;
      if (begin == end) return -1;
      const uint64_t rest = first ? range + 1 : range - (uint64_t{1} << 32);
      if (left.compare_exchange_weak(range, rest, std::memory_order_relaxed)) {
        return static_cast<int64_t>(first ? begin : end - 1);
      }
    }
  }
  // Of the stage's chain.
  std::atomic<int64_t>& Done(int64_t owner, int64_t stage, int64_t block) {
    return done_[static_cast<size_t>((owner * CeilDiv(stages_, chained_) + stage / chained_) * blocks_ + block)];
  }

  const int64_t rows_, block_rows_, stages_, chained_, own_rows_, owners_, blocks_;
  std::vector<std::atomic<uint64_t>> left_;  // of an owner's stage: the first block, and the end of the last
  std::vector<std::atomic<int64_t>> done_;   // of a block's chain: how many stages are
};

// One thread's way through its blocks: those of `turns`, or all.
class Walk {
 public:
  Walk(int64_t rows, int64_t block_rows, int64_t stages)
      : block_rows_(block_rows), stages_(stages), row_(-block_rows), end_(rows) {}
  Walk(Turns& turns, int64_t thread)
      : block_rows_(turns.block_rows_), stages_(turns.stages_), turns_(&turns), thread_(thread) {}

  // The next block, until there is none; waits for the stages before in its chain.
  bool Next() {
    if (turns_ != nullptr) return NextTurn();
    row_ += block_rows_;
    if (row_ >= end_) row_ = 0, ++stage_;
    return stage_ < stages_;
  }
  // To be called when the block is computed, always: others may wait for it.
  void Done() {
    if (turns_ == nullptr) return;
    turns_->Done(owner_, stage_, block_).store(stage_ % turns_->chained_ + 1, std::memory_order_release);
  }
  int64_t stage() const { return stage_; }
  int64_t row() const { return row_; }
  int64_t rows() const { return std::min(block_rows_, end_ - row_); }
  // Those that are likely to be next in this stage, and the first of the next: none where blocks are stolen.
  int64_t rows_after() const { return stolen_from_ > 0 ? 0 : std::min(block_rows_, end_ - row_ - rows()); }
  int64_t first_row() const { return first_row_; }
  int64_t first_rows() const { return stolen_from_ > 0 ? 0 : std::min(block_rows_, end_ - first_row_); }

 private:
  bool NextTurn() {
    for (; stolen_from_ < turns_->owners_; ++stolen_from_, stage_ = 0) {
      owner_ = (thread_ + stolen_from_) % turns_->owners_;
      for (; stage_ < stages_; ++stage_) {
        block_ = turns_->Take(owner_, stage_, stolen_from_ == 0);
        if (block_ < 0) continue;
        const std::atomic<int64_t>& done = turns_->Done(owner_, stage_, block_);
        const int64_t before = stage_ % turns_->chained_;
        const auto ready = [&] { return done.load(std::memory_order_acquire) >= before; };
        while (!SpinFor(std::chrono::microseconds(100), ready)) std::this_thread::yield();
        first_row_ = owner_ * turns_->own_rows_;
        row_ = first_row_ + block_ * block_rows_;
        end_ = std::min(turns_->rows_, first_row_ + turns_->own_rows_);
        return true;
      }
    }
    return false;
  }

  const int64_t block_rows_, stages_;
  Turns* const turns_ = nullptr;
  const int64_t thread_ = 0;
  int64_t stolen_from_ = 0;  // owners after this thread
  int64_t owner_ = 0, block_ = 0;
  int64_t stage_ = 0, row_ = 0, first_row_ = 0, end_ = 0;
};

}  // namespace tpu::host

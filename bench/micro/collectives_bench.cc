// Collectives of ranks that are threads of one process: all_reduce by algorithm, ranks and bytes, and alone the
// comparison of what the ranks do, which every collective begins with.
//
// Recursive doubling exists here only, over the same rounds: the measure of why shared_memory.cc does without it.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "collectives/reduce.h"
#include "collectives/rounds.h"
#include "collectives/shared_memory.h"

namespace tpu {
namespace {

constexpr std::chrono::milliseconds kTimeout{60000};

void MustBeOk(const absl::Status& status) {
  if (!status.ok()) std::abort();
}

// One all_reduce of a slot's bytes or less. In round k a rank adds what the rank that differs in bit k has by then.
void DoubleRecursively(Rounds& rounds, const Collective& c) {
  rounds.Open(c, 1);
  const Piece& piece = c.inputs[0];
  const int64_t count = piece.bytes / static_cast<int64_t>(SizeOf(c.dtype));
  for (int distance = 1; distance < rounds.size(); distance *= 2) {
    MustBeOk(rounds.Publish([&](char* slot) { std::memcpy(slot, piece.data, static_cast<size_t>(piece.bytes)); }));
    const int other = rounds.rank() ^ distance;
    MustBeOk(rounds.Await(other));
    const char* const sources[] = {piece.data, rounds.SlotOf(other)};
    Combine(c.dtype, c.op, sources, {}, count, piece.data);
    rounds.Finish();
  }
}

enum Algorithm : int64_t { kDirect, kScatterGather, kRecursiveDoubling };

// Arguments: algorithm, ranks, bytes.
void AllReduce(benchmark::State& state) {
  constexpr int kCollectives = 200;
  const int64_t algorithm = state.range(0), bytes = state.range(2);
  const int ranks = static_cast<int>(state.range(1));
  for (auto _ : state) {
    const std::shared_ptr<Segment> segment = *Segment::Create(ranks);
    double seconds = 0;
    const auto run = [&](int rank) {
      const auto reduction = algorithm == kDirect ? Reduction::kDirect : Reduction::kScatterGather;
      const std::unique_ptr<Group> group = MakeSharedMemoryGroup(segment, rank, kTimeout, reduction);
      Rounds rounds(segment, rank, kTimeout);
      std::vector<char> data(static_cast<size_t>(bytes));
      Collective c{.verb = Verb::kAllReduce, .dtype = DType::kFloat32, .op = ReduceOp::kMax};
      c.inputs = c.outputs = {{data.data(), bytes}};
      auto start = std::chrono::steady_clock::now();
      for (int i = -10; i < kCollectives; ++i) {
        if (i == 0) start = std::chrono::steady_clock::now();
        if (algorithm == kRecursiveDoubling) {
          DoubleRecursively(rounds, c);
        } else {
          MustBeOk(group->Run(c));
        }
      }
      if (rank == 0) seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) threads.emplace_back(run, r);
    for (std::thread& t : threads) t.join();
    state.SetIterationTime(seconds / kCollectives);
  }
}
BENCHMARK(AllReduce)
    ->ArgNames({"algorithm", "ranks", "bytes"})
    ->ArgsProduct({{kDirect, kScatterGather, kRecursiveDoubling},
                   {2, 4, 8},
                   {64, 4 << 10, 16 << 10, 64 << 10, 256 << 10}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->Iterations(1)
    ->Repetitions(9)
    ->DisplayAggregatesOnly();

// What the comparison costs a rank when the others are there already: its announcement, and everybody's against it.
void Check(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const std::shared_ptr<Segment> segment = *Segment::Create(ranks);
  Rounds rounds(segment, 0, kTimeout);
  std::vector<float> data(256);
  Collective c{.verb = Verb::kAllReduce, .dtype = DType::kFloat32};
  c.inputs = c.outputs = {{reinterpret_cast<char*>(data.data()), 1024}};
  uint64_t round = 0;
  for (auto _ : state) {
    rounds.Open(c, 1);
    for (int r = 1; r < ranks; ++r) {
      Member& other = segment->member(r);
      other.announcements[round % 2] = rounds.mine();
      other.consumed.store(round, std::memory_order_relaxed);
      other.published.store(round + 1, std::memory_order_release);
    }
    MustBeOk(rounds.Publish([](char*) {}));
    rounds.Finish();
    ++round;
  }
}
BENCHMARK(Check)->ArgName("ranks")->DenseRange(2, 9);

}  // namespace
}  // namespace tpu

BENCHMARK_MAIN();

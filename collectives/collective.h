// What the ranks of a group do together, as plain data, and the seam behind which it happens.
//
// Made by the c10d adapter (and by tests), run by a Group: shared memory between the ranks of one host
// (shared_memory.h), or Gloo across hosts (c10d/gloo.h). A Collective owns no memory: its pieces stay the caller's
// until Run returns. Run blocks: it is called by a stream's own thread, one collective at a time; sends and receives
// of different peers may run beside it on threads of their own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "runtime/exchange.h"

namespace tpu {

inline constexpr int kAnyRank = -1;  // of a kRecv: whoever sends first

// Elements that lie one after the other.
struct Piece {
  char* data = nullptr;
  int64_t bytes = 0;
};

// An output is one of the inputs at the same place, or apart from all of them.
struct Collective {
  Verb verb = Verb::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;  // of kPremulSum: every rank's elements are multiplied by its own first
  int peer = 0;      // the root; of sends and receives the other rank, or kAnyRank
  int tag = 0;
  std::vector<Piece> inputs, outputs;
  // The ranks' devices move the elements (device_ranks.h): the group announces and compares only, pieces have no data.
  bool by_devices = false;

  // "all_reduce(sum, f32[16])"
  std::string Describe() const;
};

class Group {
 public:
  Group(int rank, int size, std::chrono::milliseconds timeout) : rank_(rank), size_(size), timeout_(timeout.count()) {}
  virtual ~Group() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(timeout_.load()); }
  virtual void SetTimeout(std::chrono::milliseconds timeout) { timeout_ = timeout.count(); }

  // The error of a rank that died, stalled beyond the timeout, or does something else names it and both collectives.
  // It is every other rank's too, and that of all collectives after it.
  virtual absl::Status Run(const Collective& collective) = 0;
  // Within a collective that is by_devices: until all ranks have come as far. Errors as of Run.
  virtual absl::Status Turn() { return absl::UnimplementedError("the ranks of this group have no devices in common"); }
  // A kRecv from kAnyRank: of the first message with its tag from a rank that `may` be the source (asked again and
  // again). Returns that rank.
  virtual absl::StatusOr<int> ReceiveAny(const Collective& collective, absl::FunctionRef<bool(int rank)> may) = 0;
  // Makes every rank's collectives fail, with this reason: what is under way returns soon. Any thread.
  virtual void Fail(const absl::Status& reason) = 0;
  // This rank takes part no more; what others still wait for from it is their error. Any thread.
  virtual void Leave() = 0;

 private:
  const int rank_;
  const int size_;
  std::atomic<int64_t> timeout_;  // ms
};

// InvalidArgument where the pieces are not what the verb says, or the element type can't be reduced so.
absl::Status Check(const Collective& collective, int rank, int size);

}  // namespace tpu

// One collective on its stream: buffers for its results, addresses for its pieces, then the group runs it.
//
// Made by the process group at the call, run once on the stream's thread (jit/external.h). A rank that can't take part
// (an operand failed, no memory) makes the whole group fail: the others would wait for it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/c10d/tensors.h"
#include "collectives/collective.h"
#include "collectives/device_ranks.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace tpu {

class CollectiveLaunch {
 public:
  // `ranks` is null where the ranks' devices can't exchange elements themselves.
  CollectiveLaunch(std::shared_ptr<Group> group, std::shared_ptr<DeviceRanks> ranks, Device& device,
                   Collective collective, const std::vector<Source>& sources, const std::vector<Target>& targets,
                   std::vector<const TensorType*> types);

  // It also comes after what is queued on this stream now, though it reads none of that.
  void WaitFirst(Stream& stream) { first_.push_back({&stream, stream.enqueued()}); }
  // Of a receive from any rank: a message of `rank` is not for it before this stream has done what is queued now. Where
  // it came from is written to `source`.
  void LeaveTo(Stream& stream, int rank) { receivers_[rank] = {&stream, stream.enqueued()}; }
  void TellSource(std::shared_ptr<std::atomic<int>> source) { source_ = std::move(source); }
  absl::Status Run(const absl::Status& sound, absl::Span<Argument> arguments, absl::Span<BufferRef> results);

 private:
  absl::Status RunInPlace(absl::Span<Argument> arguments, absl::Span<BufferRef> results);
  absl::Status RunOnHostCopies(absl::Span<Argument> arguments, absl::Span<BufferRef> results);
  absl::Status RunOnDevices(absl::Span<Argument> arguments, absl::Span<BufferRef> results);
  DeviceRanks::PartRef PartOf(absl::Span<Argument> arguments) const;
  absl::StatusOr<int> RunGroup();  // a message's source
  // Gives the pieces of operand (or result) `index` their addresses in `data`.
  static void Place(std::vector<Piece>& pieces, size_t first, size_t count, char* data);

  // Where an operand's or result's pieces are among the collective's, and where they begin in its buffer.
  struct Slice {
    const TensorType* type = nullptr;
    int64_t offset = 0;
    size_t first_piece = 0, pieces = 0;
    int in_place = -1;
  };
  const std::shared_ptr<Group> group_;
  const std::shared_ptr<DeviceRanks> ranks_;
  Device& device_;
  Collective collective_;
  const std::vector<const TensorType*> types_;
  std::vector<Slice> sources_, targets_;
  struct Point {
    Stream* stream;
    uint64_t sequence;
  };
  std::vector<Point> first_;
  std::map<int, Point> receivers_;  // by rank
  std::shared_ptr<std::atomic<int>> source_;
};

}  // namespace tpu

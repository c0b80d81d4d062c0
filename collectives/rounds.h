// How ranks that share a Segment take turns: rounds, in which each publishes a slot and reads the others'.
//
//   Publish: waits until everybody has read what the slot held two rounds ago, lets the caller fill it, announces it
//   Await:   waits until a rank has published this round
//   Finish:  says that this rank has read what it needs of this round
//
// So a rank may be one round ahead of the slowest. Every wait ends: by the counter it waits for, by the group's
// failure, by the death or leave of the rank waited for, or by the timeout; the last two make the group fail, in words
// that name the rank and the collective. Waits spin a little, then sleep on a futex. Used by one thread at a time
// (shared_memory.h); WaitFor by any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "collectives/collective.h"
#include "collectives/segment.h"

namespace tpu {

class Rounds {
 public:
  Rounds(std::shared_ptr<Segment> segment, int rank, std::chrono::milliseconds timeout);

  const Segment& segment() const { return *segment_; }
  int rank() const { return rank_; }
  int size() const { return segment_->ranks(); }

  // The group's failure, if there is one.
  absl::Status Sound() const;
  // The next rounds belong to this collective.
  void Open(const Collective& collective, uint64_t shape);
  // `fill` writes at most the segment's slot_bytes(). At a collective's first round all ranks are waited for, and
  // compared.
  absl::Status Publish(absl::FunctionRef<void(char* slot)> fill);
  absl::Status Await(int rank);
  const char* SlotOf(int rank) const { return segment_->slot(rank, round_); }
  const Announcement& mine() const { return mine_; }
  const Announcement& AnnouncedBy(int rank) const { return segment_->member(rank).announcements[round_ % 2]; }
  // At an all_to_all's first round.
  int64_t SentBy(int from, int to) const { return segment_->member(from).sends[round_ % 2][to]; }
  int64_t ExpectedBy(int to, int from) const { return segment_->member(to).expects[round_ % 2][from]; }
  void Finish();

  // Waits for `rank` to make `ready` true. `what` is what this rank is doing.
  absl::Status WaitFor(int rank, absl::FunctionRef<bool()> ready, absl::FunctionRef<std::string()> what);
  // Waits until some rank has made `ready` true. The death of any is an error (it may be the one that is waited for),
  // and so is that all have left.
  absl::Status WaitForAny(absl::FunctionRef<bool()> ready, absl::FunctionRef<std::string()> what);
  // A change of this rank's counters outside rounds.
  void Changed() { segment_->Wake(self_); }
  absl::Status Fail(const std::string& message);
  void Leave();
  void SetTimeout(std::chrono::milliseconds timeout) { timeout_ = timeout.count(); }

 private:
  absl::Status Compare();
  std::string Gone(int rank) const;
  std::string AnyGone() const;
  std::string DescribeAnnouncement(const Announcement& a) const;

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  std::atomic<int64_t> timeout_;  // ms
  const std::chrono::nanoseconds spin_;
  Member& self_;
  uint64_t round_ = 0;
  Announcement mine_;
  const Collective* collective_ = nullptr;
};

}  // namespace tpu

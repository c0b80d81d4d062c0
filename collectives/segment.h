// The memory that the ranks of one host share: a control block a rank, slots for collectives, mailboxes for messages.
//
// Made by one rank (Create), mapped by the others (Open) by the address that it gives out through the rendezvous, or
// handed to the ranks themselves where they are threads of one process (tests). It has no name in any file system
// (memfd), so nothing is left behind however the processes end. Everything in it is atomics and bytes; who may write
// what is told at each field. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tpu {

inline constexpr int kMaxLocalRanks = 64;

// What a rank says of the round it publishes: compared with everybody's at a collective's first round.
struct Announcement {
  uint64_t sequence = 0;  // the collective's number in its group, from 1
  uint64_t shape = 0;     // a hash of what all ranks must agree on besides the rest of this
  int64_t elements = 0;   // for messages to people
  uint32_t step = 0;      // the round's number in its collective
  int32_t root = 0;
  uint8_t verb = 0, dtype = 0, op = 0;
  double scale = 1;     // of this rank: need not agree
  int64_t largest = 0;  // the largest piece of this rank: need not agree
};

// Two of everything that is published: the parity of the round (of the message chunk) says which.
struct alignas(64) Member {
  // Written by this rank only.
  alignas(64) std::atomic<uint64_t> published{0};  // rounds whose announcement and slot are there
  alignas(64) std::atomic<uint64_t> consumed{0};   // rounds of everybody's that this rank has read
  // Moves with every change of this rank's counters; those who wait for one sleep here.
  alignas(64) std::atomic<uint32_t> event{0};
  std::atomic<uint32_t> sleepers{0};
  enum State : uint32_t { kAbsent, kPresent, kLeft };
  std::atomic<uint32_t> state{kAbsent};
  int64_t pid = 0;
  uint64_t started = 0;  // when the process did: a pid can be given out again
  Announcement announcements[2];
  int64_t sends[2][kMaxLocalRanks];    // of all_to_all: bytes for each rank
  int64_t expects[2][kMaxLocalRanks];  // and from each
};

// Messages from one rank to another, chunk by chunk.
struct alignas(64) Mailbox {
  alignas(64) std::atomic<uint64_t> sent{0};   // chunks; by the sender
  alignas(64) std::atomic<uint64_t> taken{0};  // by the receiver
  struct Letter {
    int64_t bytes = 0;  // of the whole message
    int32_t tag = 0;
    uint8_t dtype = 0;
  };
  Letter letters[2];  // valid for a message's first chunk
};

class Segment {
 public:
  // A slot that stays in a core's cache while it is filled and read; where ranks share cores every turn costs a switch
  // between them, so there is more to a turn.
  static constexpr int64_t kSlotBytes = 256 << 10;
  static constexpr int64_t kSharedCoreSlotBytes = 1 << 20;
  static constexpr int64_t kMailBytes = 64 << 10;

  static absl::StatusOr<std::shared_ptr<Segment>> Create(int ranks);
  // What Open takes, in any process of this user on this host.
  std::string Address() const;
  static bool IsOfThisProcess(const std::string& address);
  static absl::StatusOr<std::shared_ptr<Segment>> Open(const std::string& address, int ranks);
  ~Segment();

  int ranks() const { return ranks_; }
  int64_t slot_bytes() const { return slot_bytes_; }
  Member& member(int rank) const;
  char* slot(int rank, uint64_t round) const;
  Mailbox& mailbox(int from, int to) const;
  char* mail(int from, int to, uint64_t chunk) const;

  // The first failure is the group's. False: there is one already.
  bool SetFailure(const std::string& message);
  bool failed() const;
  std::string Failure() const;
  // Tells everybody who sleeps.
  void Wake(Member& member) const;

 private:
  struct Head;
  Segment(int fd, int ranks, int64_t slot_bytes, char* base, size_t bytes)
      : fd_(fd), ranks_(ranks), slot_bytes_(slot_bytes), base_(base), bytes_(bytes) {}
  static absl::StatusOr<std::shared_ptr<Segment>> Map(int fd, int ranks, int64_t slot_bytes);
  static size_t BytesFor(int ranks, int64_t slot_bytes);
  Head& head() const { return *reinterpret_cast<Head*>(base_); }

  const int fd_;
  const int ranks_;
  const int64_t slot_bytes_;
  char* const base_;
  const size_t bytes_;
};

// Whether so many ranks of this host have less than a core each.
bool ShareCores(int ranks);

// Sleeps until the word is no longer `seen`, or the time is up, or for no reason.
void FutexWait(std::atomic<uint32_t>& word, uint32_t seen, int64_t nanoseconds);
void FutexWakeAll(std::atomic<uint32_t>& word);

// When process `pid` of this host was started, in the kernel's ticks; 0 if there is none or it has died.
uint64_t ProcessStart(int64_t pid);
// Equal for processes that can share memory and see each other: same boot, same namespaces of processes and network
// (different network namespaces count as different hosts).
std::string HostIdentity();

}  // namespace tpu

#include "collectives/rounds.h"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/spin.h"

namespace tpu {
namespace {

using Clock = std::chrono::steady_clock;

// Ranks that have a core each answer within microseconds. Where ranks share cores, spinning keeps the core from the
// rank that is waited for.
constexpr std::chrono::nanoseconds kSpin = std::chrono::microseconds(40);
constexpr std::chrono::nanoseconds kSpinOnSharedCores = std::chrono::microseconds(2);
// How often a sleeper looks whether the rank it waits for is alive.
constexpr int64_t kLookEvery = 20'000'000;  // ns
constexpr std::chrono::microseconds kLongestNap{1000};
// For another rank to have written what failed, unless it is killed meanwhile.
constexpr std::chrono::milliseconds kWritesFailure{100};

}  // namespace

Rounds::Rounds(std::shared_ptr<Segment> segment, int rank, std::chrono::milliseconds timeout)
    : segment_(std::move(segment)),
      rank_(rank),
      timeout_(timeout.count()),
      spin_(ShareCores(segment_->ranks()) ? kSpinOnSharedCores : kSpin),
      self_(segment_->member(rank)) {
  self_.pid = getpid();
  self_.started = ProcessStart(self_.pid);
  self_.state.store(Member::kPresent, std::memory_order_release);
  Changed();
}

absl::Status Rounds::Sound() const {
  return segment_->failed() ? absl::AbortedError(segment_->Failure()) : absl::OkStatus();
}

absl::Status Rounds::Fail(const std::string& message) {
  segment_->SetFailure(message);
  if (!SpinFor(kWritesFailure, [this] { return segment_->failed(); })) return absl::AbortedError(message);
  return Sound();
}

void Rounds::Leave() {
  self_.state.store(Member::kLeft, std::memory_order_release);
  Changed();
}

void Rounds::Open(const Collective& c, uint64_t shape) {
  int64_t bytes = 0, largest = 0;
  for (const auto* pieces : {&c.inputs, &c.outputs}) {
    for (const Piece& p : *pieces) largest = std::max(largest, p.bytes);
  }
  for (const Piece& p : c.inputs.empty() ? c.outputs : c.inputs) bytes += p.bytes;
  collective_ = &c;
  mine_ = {.sequence = mine_.sequence + 1,
           .shape = shape,
           .elements = bytes / static_cast<int64_t>(SizeOf(c.dtype)),
           .step = 0,
           .root = c.peer,
           .verb = static_cast<uint8_t>(c.verb),
           .dtype = static_cast<uint8_t>(c.dtype),
           .op = static_cast<uint8_t>(c.op),
           .scale = c.scale,
           .largest = largest};
}

absl::Status Rounds::Publish(absl::FunctionRef<void(char*)> fill) {
  const auto what = [this] { return DescribeAnnouncement(mine_); };
  if (round_ >= 2) {  // the slot's former content has been read
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      const std::atomic<uint64_t>& consumed = segment_->member(r).consumed;
      const auto read = [&] { return consumed.load(std::memory_order_acquire) >= round_ - 1; };
      if (read()) continue;
      if (absl::Status status = WaitFor(r, read, what); !status.ok()) return status;
    }
  }
  if (collective_->verb == Verb::kAllToAll && mine_.step == 0) {
    for (int r = 0; r < size(); ++r) {
      self_.sends[round_ % 2][r] = collective_->inputs[r].bytes;
      self_.expects[round_ % 2][r] = collective_->outputs[r].bytes;
    }
  }
  fill(segment_->slot(rank_, round_));
  self_.announcements[round_ % 2] = mine_;
  self_.published.store(round_ + 1, std::memory_order_seq_cst);
  Changed();
  if (mine_.step != 0) return absl::OkStatus();
  for (int r = 0; r < size(); ++r) {
    if (absl::Status status = Await(r); !status.ok()) return status;
  }
  return Compare();
}

absl::Status Rounds::Await(int rank) {
  const std::atomic<uint64_t>& published = segment_->member(rank).published;
  const auto there = [&] { return published.load(std::memory_order_acquire) > round_; };
  if (there()) return absl::OkStatus();
  return WaitFor(rank, there, [this] { return DescribeAnnouncement(mine_); });
}

void Rounds::Finish() {
  ++round_;
  ++mine_.step;
  self_.consumed.store(round_, std::memory_order_seq_cst);
  Changed();
}

// Everybody's announcement of this round against this rank's.
absl::Status Rounds::Compare() {
  for (int r = 0; r < size(); ++r) {
    const Announcement& a = AnnouncedBy(r);
    const bool same = a.sequence == mine_.sequence && a.shape == mine_.shape && a.step == mine_.step &&
                      a.root == mine_.root && a.verb == mine_.verb && a.dtype == mine_.dtype && a.op == mine_.op;
    if (same) continue;
    return Fail(absl::StrCat("ranks diverge: rank ", r, " is at ", DescribeAnnouncement(a), " while rank ", rank_,
                             " is at ", DescribeAnnouncement(mine_)));
  }
  return absl::OkStatus();
}

std::string Rounds::DescribeAnnouncement(const Announcement& a) const {
  const Verb verb = static_cast<Verb>(a.verb);
  std::string text = absl::StrCat("collective #", a.sequence, " ", NameOf(verb));
  if (verb == Verb::kBarrier) return text;
  absl::StrAppend(&text, "(", std::string(NameOf(static_cast<DType>(a.dtype))), "[", a.elements, "]");
  if (Reduces(verb)) absl::StrAppend(&text, ", ", NameOf(static_cast<ReduceOp>(a.op)));
  if (verb == Verb::kBroadcast || verb == Verb::kScatter || verb == Verb::kGather || verb == Verb::kReduce) {
    absl::StrAppend(&text, ", root ", a.root);
  }
  return text + ")";
}

absl::Status Rounds::WaitFor(int rank, absl::FunctionRef<bool()> ready, absl::FunctionRef<std::string()> what) {
  if (SpinFor(spin_, ready)) return absl::OkStatus();
  const Clock::time_point start = Clock::now();
  Member& other = segment_->member(rank);
  absl::Status status;
  other.sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (true) {
    const uint32_t seen = other.event.load(std::memory_order_seq_cst);
    if (ready()) break;
    if (status = Sound(); !status.ok()) break;
    FutexWait(other.event, seen, kLookEvery);
    const std::string gone = Gone(rank);
    if (ready()) break;  // it did so before it went
    if (!gone.empty()) {
      status = Fail(absl::StrCat("rank ", rank, gone, " while rank ", rank_, " waits for it in ", what()));
      break;
    }
    const int64_t timeout = timeout_.load();
    if (Clock::now() - start > std::chrono::milliseconds(timeout)) {
      status = Fail(absl::StrCat("timeout: rank ", rank_, " waited ", timeout, " ms for rank ", rank, " in ", what()));
      break;
    }
  }
  other.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return status;
}

// There is no one word to sleep on: looks again after a while, which grows.
absl::Status Rounds::WaitForAny(absl::FunctionRef<bool()> ready, absl::FunctionRef<std::string()> what) {
  if (SpinFor(spin_, ready)) return absl::OkStatus();
  const Clock::time_point start = Clock::now();
  std::chrono::microseconds nap(20);
  while (true) {
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, kLongestNap);
    const std::string gone = nap == kLongestNap ? AnyGone() : "";
    if (ready()) return absl::OkStatus();
    if (absl::Status status = Sound(); !status.ok()) return status;
    if (!gone.empty()) return Fail(absl::StrCat(gone, " while rank ", rank_, " waits in ", what()));
    const int64_t timeout = timeout_.load();
    if (Clock::now() - start > std::chrono::milliseconds(timeout)) {
      return Fail(absl::StrCat("timeout: rank ", rank_, " waited ", timeout, " ms in ", what()));
    }
  }
}

// That a rank has died, or all the others have left; empty while a message may come.
std::string Rounds::AnyGone() const {
  int left = 0;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    const std::string gone = Gone(r);
    if (gone.empty()) continue;
    if (segment_->member(r).state.load(std::memory_order_acquire) != Member::kLeft)
      return absl::StrCat("rank ", r, gone);
    ++left;
  }
  return left == size() - 1 ? "every other rank has left the group" : "";
}

// Why `rank` will do nothing more; empty while it may.
std::string Rounds::Gone(int rank) const {
  const Member& other = segment_->member(rank);
  const uint32_t state = other.state.load(std::memory_order_acquire);
  if (state == Member::kLeft) return " has left the group";
  if (state == Member::kPresent && other.pid != self_.pid && ProcessStart(other.pid) != other.started) {
    return absl::StrCat(" has died (process ", other.pid, ")");
  }
  return "";
}

}  // namespace tpu

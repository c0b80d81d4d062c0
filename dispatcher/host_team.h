// The threads with which ATen's CPU kernels run in parallel. OpenMP keeps a team of them for every thread that ever ran
// such a kernel. After a kernel, libgomp has a team's threads spin for milliseconds; as soon as all teams together have
// more threads than there are processors, it puts them to sleep instead.
//
// So a working stream holds a team, used or not: else what the user's own kernels on the CPU leave spinning takes its
// cores (a training step that draws its batch on the CPU took 1.15 times as long). A stream at rest gives it up: else
// those kernels would take 1.4 times as long for ever.
//
// Any thread; the first two are for streams'. Each does nothing with another OpenMP than GNU's.
#pragma once

#include <atomic>
#include <cstdint>

namespace tpu {

// Until the calling stream rests it has a team, large enough for that (some 0.1 ms, where it hasn't one).
void HoldHostTeam();

// When the calling stream rests, its team, if it has one, ends (some 0.3 ms; 1 us without); its next parallel kernel
// makes another.
void GiveUpHostTeamLater();

// While one lives, ATen's kernels run on no more than `most` threads, at least one, where the calling thread calls
// them: what would wait for a team whose cores others have is done sooner by fewer.
class HostTeamLimit {
 public:
  explicit HostTeamLimit(int most);
  ~HostTeamLimit();
  HostTeamLimit(const HostTeamLimit&) = delete;
  HostTeamLimit& operator=(const HostTeamLimit&) = delete;

 private:
  int former_ = 0, former_mkl_ = 0;
};

// Whether a kernel that runs over and over is done sooner by the calling thread alone than by its team, by what its
// last runs took: a team that sleeps must be woken, and one beside other work waits for a core.
class TeamChoice {
 public:
  // Of the run that begins.
  bool Alone();
  void Took(bool alone, int64_t nanoseconds);

 private:
  std::atomic<uint32_t> runs_{0};
  std::atomic<int64_t> took_[2] = {0, 0};  // by the team, alone: about, lately; 0: not known
};

}  // namespace tpu

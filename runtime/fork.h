// Whether this process is a forked child of one that had streams: its copies of the device's threads do not exist, so
// nothing may be queued or waited for.
//
// Asked by Stream before it touches a lock, and by the layers above at their entries, where the error can be raised as
// a Python exception. The scope at the end keeps forks away from work that a child would hang from. Any thread.
#pragma once

#include "absl/status/status.h"

namespace tpu {

// Arms the detection; called by the first Stream. A child forked before that is an ordinary process.
void WatchForks();
bool InForkedChild();
// FailedPrecondition, with what to do instead, in a forked child.
absl::Status CheckNotForked();

// Work during which it is better not to fork: a compiler takes locks of libc (of the dynamic loader's tables) that no
// child could ever take again. A fork waits for those inside, 200 ms at most; nobody enters meanwhile.
class NoForkScope {
 public:
  NoForkScope();
  ~NoForkScope();
  NoForkScope(const NoForkScope&) = delete;
  NoForkScope& operator=(const NoForkScope&) = delete;
};

}  // namespace tpu

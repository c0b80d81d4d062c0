#include "runtime/fork.h"

#include <pthread.h>

#include <atomic>
#include <mutex>

namespace tpu {
namespace {
std::atomic<bool> in_forked_child{false};
}  // namespace

void WatchForks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { in_forked_child.store(true); }); });
}

bool InForkedChild() { return in_forked_child.load(std::memory_order_relaxed); }

absl::Status CheckNotForked() {
  if (!InForkedChild()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, you must use the 'spawn' start "
      "method");
}

}  // namespace tpu

#include "runtime/fork.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

namespace tpu {
namespace {
std::atomic<bool> in_forked_child{false};
std::atomic<int> inside{0};  // NoForkScopes
std::atomic<int> forking{0};

// Polls: neither side may hold a lock over the fork. False when the time is up.
template <typename Condition>
bool Poll(std::chrono::milliseconds limit, const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

void BeforeFork() {
  ++forking;
  Poll(std::chrono::milliseconds(200), [] { return inside == 0; });
}
void AfterForkInParent() { --forking; }
void AfterForkInChild() { in_forked_child = true; }
}  // namespace

NoForkScope::NoForkScope() {
  while (true) {
    ++inside;
    if (forking == 0) return;
    --inside;
    Poll(std::chrono::seconds(1), [] { return forking == 0; });
  }
}
NoForkScope::~NoForkScope() { --inside; }

void WatchForks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(&BeforeFork, &AfterForkInParent, &AfterForkInChild); });
}

bool InForkedChild() { return in_forked_child.load(std::memory_order_relaxed); }

absl::Status CheckNotForked() {
  if (!InForkedChild()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, you must use the 'spawn' start "
      "method");
}

}  // namespace tpu

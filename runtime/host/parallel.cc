#include "runtime/host/parallel.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>

#include "runtime/flags.h"
#include "runtime/machine.h"

namespace tpu::host {
namespace {

// More pieces than threads: a thread that wakes late, or loses its core for a while, leaves its share to the others.
constexpr int64_t kPiecesPerThread = 4;

tbb::task_arena& Arena() {
  // Never destroyed: streams may still compute while the process exits.
  static tbb::task_arena* arena = new tbb::task_arena(NumThreads());
  return *arena;
}

// TBB orders a loop's pieces after its start and before its end, in code that the thread sanitizer does not see; this
// tells it. Nothing in other builds.
class Handshake {
 public:
#if defined(__SANITIZE_THREAD__)
  Handshake() { order_.store(1, std::memory_order_release); }
  void BeginPiece() { order_.load(std::memory_order_acquire); }
  void EndPiece() { order_.fetch_add(1, std::memory_order_acq_rel); }
  void EndLoop() { order_.load(std::memory_order_acquire); }

 private:
  std::atomic<int> order_{0};
#else
  void BeginPiece() {}
  void EndPiece() {}
  void EndLoop() {}
#endif
};

}  // namespace

int NumThreads() {
  const Flags& flags = Flags::Get();
  static const int threads =
      flags.threads > 0 ? flags.threads : std::max(1, UsableCores() / std::max(1, flags.local_ranks));
  return threads;
}

int ThreadNumber() {
  // What makes only one piece may run on a thread that TBB does not know.
  return std::clamp(tbb::this_task_arena::current_thread_index(), 0, NumThreads() - 1);
}

void ParallelFor(int64_t extent, int64_t grain, absl::FunctionRef<void(int64_t, int64_t)> body) {
  if (extent <= 0) return;
  const int64_t threads = NumThreads();
  const int64_t pieces = std::min(extent / std::max<int64_t>(grain, 1), threads * kPiecesPerThread);
  if (pieces <= 1 || threads == 1) {
    body(0, extent);
    return;
  }
  Handshake handshake;
  Arena().execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<int64_t>(0, pieces, 1),
        [&](const tbb::blocked_range<int64_t>& range) {
          handshake.BeginPiece();
          for (int64_t i = range.begin(); i < range.end(); ++i) {
            // extent / pieces rounded down, the remainder spread over the first pieces: no product can overflow.
            const int64_t each = extent / pieces, more = extent % pieces;
            const int64_t begin = i * each + std::min(i, more);
            body(begin, begin + each + (i < more ? 1 : 0));
          }
          handshake.EndPiece();
        },
        tbb::simple_partitioner());
  });
  handshake.EndLoop();
}

}  // namespace tpu::host

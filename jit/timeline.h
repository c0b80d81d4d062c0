// What the streams did and when: a span for each fragment and each collective, while somebody records.
//
// Written by the streams' threads, at no cost but a look at a flag while nobody records; started and read by the
// dispatcher for torch.profiler (dispatcher/timeline.cc). One per process. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/stream.h"

namespace tpu {

struct Span {
  enum class Kind : uint8_t { kFragment, kCollective };
  Kind kind = Kind::kFragment;
  int device = 0, stream = 0;
  int64_t begin = 0, end = 0;  // ns since the epoch
  std::string name;
  std::vector<std::pair<const char*, std::string>> details;
};

class Timeline {
 public:
  static Timeline& Get();
  static int64_t Now();  // ns since the epoch

  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  void Start();
  // The spans since Start, in the order of their ends.
  std::vector<Span> Stop();
  // Ends now. Spans beyond a million are dropped.
  void Add(Span::Kind kind, const Stream& stream, int64_t begin, std::string name,
           std::vector<std::pair<const char*, std::string>> details = {});

 private:
  std::atomic<bool> recording_{false};
  std::mutex mutex_;
  std::vector<Span> spans_;  // guarded by mutex_
};

}  // namespace tpu

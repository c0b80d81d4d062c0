#include "jit/timeline.h"

#include <chrono>

namespace tpu {
namespace {

constexpr size_t kMaxSpans = 1'000'000;

}  // namespace

Timeline& Timeline::Get() {
  static auto* const timeline = new Timeline();
  return *timeline;
}

int64_t Timeline::Now() { return std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

void Timeline::Start() {
  std::lock_guard<std::mutex> lock(mutex_);
  spans_.clear();
  recording_ = true;
}

std::vector<Span> Timeline::Stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  recording_ = false;
  return std::exchange(spans_, {});
}

void Timeline::Add(Span::Kind kind, const Stream& stream, int64_t begin, std::string name,
                   std::vector<std::pair<const char*, std::string>> details) {
  const int64_t end = Now();
  std::lock_guard<std::mutex> lock(mutex_);
  if (!recording() || spans_.size() >= kMaxSpans) return;
  spans_.push_back({kind, stream.device_index(), stream.id(), begin, end, std::move(name), std::move(details)});
}

}  // namespace tpu

#include "jit/external.h"

#include <memory>
#include <utility>

#include "jit/timeline.h"
#include "jit/window.h"

namespace tpu {

External::Queued External::Enqueue(Stream& stream, std::vector<ValueRef> operands,
                                   absl::Span<const TensorType* const> results, const std::string& what,
                                   std::string title, Run run) {
  for (const ValueRef& v : operands) {
    if (Window* window = v->window_.load(std::memory_order_acquire)) window->Cut(CutReason::kCollective, what, v.get());
  }
  Queued queued;
  for (const TensorType* type : results) queued.results.push_back(MakeRef<Value>(type, &stream, nullptr));
  queued.sequence =
      stream.Enqueue([&stream, operands = std::move(operands), made = queued.results, title = std::move(title),
                      run = std::move(run)]() mutable { RunNow(stream, operands, made, title, run); });
  for (const ValueRef& v : queued.results) v->sequence_ = queued.sequence;
  return queued;
}

void External::RunNow(Stream& stream, std::vector<ValueRef>& operands, absl::Span<const ValueRef> results,
                      const std::string& title, const Run& run) {
  std::vector<Argument> arguments(operands.size());
  absl::Status sound;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (const auto& error = operands[i]->Hand(stream, arguments[i])) sound = *error;
  }
  std::vector<BufferRef> buffers(results.size());
  const bool traced = Timeline::Get().recording();
  const int64_t begin = traced ? Timeline::Now() : 0;
  const absl::Status status = run(sound, absl::MakeSpan(arguments), absl::MakeSpan(buffers));
  if (traced) Timeline::Get().Add(Span::Kind::kCollective, stream, begin, title);
  const auto error = status.ok() ? nullptr : std::make_shared<const absl::Status>(status);
  for (size_t i = 0; i < results.size(); ++i) {
    if (status.ok()) results[i]->buffer_ = std::move(buffers[i]);
    results[i]->error_ = error;
  }
  operands.clear();
}

}  // namespace tpu

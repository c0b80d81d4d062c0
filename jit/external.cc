#include "jit/external.h"

#include <memory>
#include <utility>

#include "jit/window.h"

namespace tpu {

External::Queued External::Enqueue(Stream& stream, std::vector<ValueRef> operands,
                                   absl::Span<const TensorType* const> results, const std::string& what, Run run) {
  for (const ValueRef& v : operands) {
    if (Window* window = v->window_.load(std::memory_order_acquire)) window->Cut(CutReason::kCollective, what);
  }
  Queued queued;
  for (const TensorType* type : results) queued.results.push_back(MakeRef<Value>(type, &stream, nullptr));
  queued.sequence = stream.Enqueue([&stream, operands = std::move(operands), made = queued.results,
                                    run = std::move(run)]() mutable { RunNow(stream, operands, made, run); });
  for (const ValueRef& v : queued.results) v->sequence_ = queued.sequence;
  return queued;
}

void External::RunNow(Stream& stream, std::vector<ValueRef>& operands, absl::Span<const ValueRef> results,
                      const Run& run) {
  std::vector<Argument> arguments(operands.size());
  absl::Status sound;
  for (size_t i = 0; i < operands.size(); ++i) {
    Value& value = *operands[i];
    if (value.stream_ != nullptr && value.stream_ != &stream) value.stream_->WaitFor(value.sequence_);
    if (value.error_) {
      sound = *value.error_;
      continue;
    }
    arguments[i].donated = value.ref_count() == 1;
    arguments[i].buffer = arguments[i].donated ? std::move(value.buffer_) : value.buffer_;
  }
  std::vector<BufferRef> buffers(results.size());
  const absl::Status status = run(sound, absl::MakeSpan(arguments), absl::MakeSpan(buffers));
  const auto error = status.ok() ? nullptr : std::make_shared<const absl::Status>(status);
  for (size_t i = 0; i < results.size(); ++i) {
    if (status.ok()) results[i]->buffer_ = std::move(buffers[i]);
    results[i]->error_ = error;
  }
  operands.clear();
}

}  // namespace tpu

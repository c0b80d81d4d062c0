#include "jit/value.h"

namespace tpu {

const std::shared_ptr<const absl::Status>& Value::Hand(Stream& stream, Argument& argument) {
  if (stream_ != nullptr && stream_ != &stream) stream_->WaitFor(sequence_);
  if (error_) return error_;
  argument.donated = ref_count() == 1;
  argument.buffer = argument.donated ? std::move(buffer_) : buffer_;
  return error_;
}

}  // namespace tpu

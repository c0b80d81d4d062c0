// The result of a recorded operation: pending in a window, queued on a stream, ready, or failed.
//
// Held by the dispatcher's storages (that makes it wanted), by the window while pending, and by launches that read it.
// A value whose only holder is its window is dead: it is dropped at the cut and never computed.
// Fields marked W are guarded by the recording lock; `buffer` and `error` are written by the launch before the sequence
// number is published as completed, and read after that.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "runtime/buffer.h"
#include "runtime/device.h"
#include "runtime/ref.h"
#include "runtime/stream.h"
#include "runtime/tensor_type.h"

namespace tpu {

class Window;

class Value final : public RefCounted<Value> {
 public:
  explicit Value(const TensorType* type) : type_(type) {}
  // A value that is there already (an upload).
  Value(const TensorType* type, Stream* stream, BufferRef buffer)
      : type_(type), stream_(stream), buffer_(std::move(buffer)) {}
  // A value that never will be there: `error` says why.
  Value(const TensorType* type, std::shared_ptr<const absl::Status> error) : type_(type), error_(std::move(error)) {}

  const TensorType& type() const { return *type_; }
  Stream* stream() const { return stream_; }
  bool pending() const { return window_.load(std::memory_order_acquire) != nullptr; }
  // True once buffer() or error() may be read.
  bool done() const { return !pending() && (stream_ == nullptr || stream_->Done(sequence_)); }
  // By the program, once at least (Engine::Await).
  bool read() const { return read_.load(std::memory_order_relaxed); }
  const BufferRef& buffer() const { return buffer_; }
  const std::shared_ptr<const absl::Status>& error() const { return error_; }

  // Puts the buffer into `argument` for work on `stream`, waiting first if another stream computes it; donated where
  // the caller held the last reference. Returns the error of a value that failed.
  const std::shared_ptr<const absl::Status>& Hand(Stream& stream, Argument& argument);

 private:
  friend class Window;
  friend class Launch;
  friend class Engine;
  friend class External;

  const TensorType* type_;                // Call::value_types, or interned: lives as long as the process
  std::atomic<Window*> window_{nullptr};  // set while pending; cleared (release) after sequence_ is set
  uint64_t epoch_ = 0;                    // W: the window epoch in which id_ is valid
  int32_t id_ = 0;                        // W: the ValueId in that epoch: a result, or an input
  int32_t launched_id_ = 0;               // W: likewise in the window before, whose epoch was launched_epoch_
  uint64_t launched_epoch_ = 0;           // W
  Stream* stream_ = nullptr;
  uint64_t sequence_ = 0;  // on stream_; 0: ready from the start
  std::atomic<bool> read_{false};
  BufferRef buffer_;
  std::shared_ptr<const absl::Status> error_;
};
using ValueRef = Ref<Value>;

}  // namespace tpu

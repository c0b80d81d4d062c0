// Device memory that holds one value (or a block that a fragment plans its temporaries in).
//
// A Buffer is immutable once the launch that fills it is done, and freed (to its allocator's cache) with its last Ref.
// Made by Device::Allocate; foreign memory (a tensor that a host kernel made) is adopted through a deleter.
// Any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "runtime/ref.h"

namespace tpu {

class Buffer final : public RefCounted<Buffer> {
 public:
  using Deleter = std::function<void()>;
  Buffer(void* data, size_t bytes, Deleter deleter) : data_(data), bytes_(bytes), deleter_(std::move(deleter)) {}
  ~Buffer() {
    if (deleter_) deleter_();
  }

  void* data() const { return data_; }  // an address if Device::host_addressable(), else the device's own handle
  size_t bytes() const { return bytes_; }

 private:
  void* data_;
  size_t bytes_;
  Deleter deleter_;
};
using BufferRef = Ref<Buffer>;

}  // namespace tpu

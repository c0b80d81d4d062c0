// A storage on `tpu`: the latest value of its bytes, and how they lie. Tensors and views over it stay plain
// TensorImpls, so aliasing is PyTorch's own.
//
// Made by factories and by recording; read and written through dispatcher/values.h. The value covers the storage whole.
// Its address is unique and no memory's: nothing can be read through it. Any thread may read and write. What several
// write to parts of one storage is all kept, and so is what operations on one tensor (`add_`) make of a whole one; the
// rest of what several write to the same elements is the user's to order.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "dispatcher/layout.h"
#include "jit/value.h"

namespace tpu {

class TpuStorage final : public c10::StorageImpl {
 public:
  // What a storage holds at one moment.
  struct Content {
    ValueRef value;  // null while uninitialised
    const Layout* layout = nullptr;
  };

  // Uninitialised: the first read makes memory.
  TpuStorage(size_t bytes, c10::DeviceIndex device);
  // Holding `value`, whose logical dims are `layout`'s sizes.
  TpuStorage(ValueRef value, const Layout* layout, c10::DeviceIndex device);

  static TpuStorage& Of(const c10::StorageImpl& storage);
  static TpuStorage& Of(const c10::TensorImpl& tensor);

  Content content() const {
    const std::lock_guard<Lock> lock(lock_);
    return {value_, layout()};
  }
  // content().layout, where the value doesn't matter. Null while uninitialised.
  const Layout* layout() const { return layout_.load(std::memory_order_acquire); }
  void Set(ValueRef value, const Layout* layout) {
    const std::lock_guard<Lock> lock(lock_);
    Swap(value, layout);
  }
  // Set, if the storage still holds `former`: what was made of that is of no use else.
  bool Replace(const ValueRef& former, ValueRef value, const Layout* layout) {
    const std::lock_guard<Lock> lock(lock_);
    if (!(value_ == former)) return false;
    Swap(value, layout);
    return true;
  }
  // What FindOverlaps remembers of the call that writes it.
  uint64_t mark() const { return mark_.load(std::memory_order_relaxed); }
  void set_mark(uint64_t mark) { mark_.store(mark, std::memory_order_relaxed); }
  // Keeps the bytes that remain; what is new is uninitialised. Reads.
  void Resize(size_t bytes);

  void release_resources() override {
    value_ = nullptr;
    c10::StorageImpl::release_resources();
  }

 private:
  // Held for a few instructions, by every operand that is read.
  class Lock {
   public:
    void lock() {
      while (taken_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
    }
    void unlock() { taken_.store(false, std::memory_order_release); }

   private:
    std::atomic<bool> taken_{false};
  };

  // The former value goes to `value`, whose owner drops it once the lock is free.
  void Swap(ValueRef& value, const Layout* layout) {
    std::swap(value_, value);
    layout_.store(layout, std::memory_order_release);
  }

  mutable Lock lock_;
  ValueRef value_;                              // guarded by lock_
  std::atomic<const Layout*> layout_{nullptr};  // written under lock_
  std::atomic<uint64_t> mark_{0};
};

// Whether the tensor is elements in one storage: sparse and nested ones are made of several tensors.
inline bool IsPlain(const at::Tensor& tensor) { return tensor.layout() == c10::kStrided && !tensor.is_nested(); }

void ResizeStorage(const c10::Storage& storage, size_t bytes);
// Makes UntypedStorage() and deepcopy give TpuStorages.
void RegisterStorage();

}  // namespace tpu

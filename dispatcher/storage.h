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

class TpuStorage;

// Told, while it is a thread's, of every storage that the thread makes, reads and writes (stream_graph.h).
class StorageObserver {
 public:
  virtual void OnMade(const c10::intrusive_ptr<TpuStorage>& storage) = 0;
  // Before the storage's value is handed out: it may be exchanged.
  virtual void OnRead(TpuStorage& storage) = 0;
  // Before the storage gets another value.
  virtual void OnWrite(TpuStorage& storage) = 0;
  // Before a storage that nothing was written to gets memory, in order to be read.
  virtual void OnMemory(TpuStorage& storage) = 0;
  // Before a storage that has memory gets another size.
  virtual void OnResize(TpuStorage& storage, size_t bytes) = 0;

 protected:
  ~StorageObserver() = default;
};

class TpuStorage final : public c10::StorageImpl {
 public:
  // What a storage holds at one moment.
  struct Content {
    ValueRef value;  // null while uninitialised
    const Layout* layout = nullptr;
  };

  // Uninitialised: the first read makes memory.
  static c10::intrusive_ptr<TpuStorage> Make(size_t bytes, c10::DeviceIndex device);
  // Holding `value`, whose logical dims are `layout`'s sizes.
  static c10::intrusive_ptr<TpuStorage> Make(ValueRef value, const Layout* layout, c10::DeviceIndex device);

  static TpuStorage& Of(const c10::StorageImpl& storage);
  static TpuStorage& Of(const c10::TensorImpl& tensor);

  Content content() {
    if (C10_UNLIKELY(observed())) TellOfRead();
    return Unobserved();
  }
  // content().layout, where the value doesn't matter. Null while uninitialised.
  const Layout* layout() const { return layout_.load(std::memory_order_acquire); }
  void Set(ValueRef value, const Layout* layout) {
    if (C10_UNLIKELY(observed())) TellOfWrite();
    SetUnobserved(std::move(value), layout);
  }
  // Set, if the storage still holds `former`: what was made of that is of no use else. Of none: with memory to be read.
  bool Replace(const ValueRef& former, ValueRef value, const Layout* layout) {
    if (C10_UNLIKELY(observed())) former ? TellOfWrite() : TellOfMemory();
    const std::lock_guard<Lock> lock(lock_);
    if (!(value_ == former)) return false;
    Swap(value, layout);
    return true;
  }
  // What FindOverlaps remembers of the call that writes it.
  uint64_t mark() const { return mark_.load(std::memory_order_relaxed); }
  void set_mark(uint64_t mark) { mark_.store(mark, std::memory_order_relaxed); }
  // Keeps the bytes that remain; what is new is uninitialised.
  void Resize(size_t bytes);

  // For the observer itself: tells nobody.
  Content Unobserved() const {
    const std::lock_guard<Lock> lock(lock_);
    return {value_, layout()};
  }
  void SetUnobserved(ValueRef value, const Layout* layout) {
    const std::lock_guard<Lock> lock(lock_);
    Swap(value, layout);
  }
  // This thread's from now on; null: none.
  static void Observe(StorageObserver* observer);

  void release_resources() override {
    value_ = nullptr;
    c10::StorageImpl::release_resources();
  }

 private:
  friend class c10::intrusive_ptr<TpuStorage>;
  TpuStorage(size_t bytes, c10::DeviceIndex device);

  // Whether any thread has an observer.
  static bool observed() { return observers_.load(std::memory_order_relaxed) != 0; }
  void TellOfRead();
  void TellOfWrite();
  void TellOfMemory();

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

  static std::atomic<int> observers_;

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

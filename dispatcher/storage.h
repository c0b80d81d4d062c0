// A storage on `tpu`: the latest value of its bytes, and how they lie. Tensors and views over it stay plain
// TensorImpls, so aliasing is PyTorch's own.
//
// Made by factories and by recording; read and written through dispatcher/values.h. The value covers the storage whole.
// Its address is reserved, unique and never mapped: nothing can be read through it. As with any storage, concurrent
// writes from several threads are the user's to order; concurrent reads are safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "dispatcher/layout.h"
#include "jit/value.h"

namespace tpu {

class TpuStorage final : public c10::StorageImpl {
 public:
  // Uninitialised: the first read makes memory.
  TpuStorage(size_t bytes, c10::DeviceIndex device);
  // Holding `value`, whose logical dims are `layout`'s sizes.
  TpuStorage(ValueRef value, const Layout* layout, c10::DeviceIndex device);

  static TpuStorage& Of(const c10::StorageImpl& storage);
  static TpuStorage& Of(const c10::TensorImpl& tensor);

  // Null while uninitialised.
  const ValueRef& value() const { return value_; }
  const Layout* layout() const { return layout_; }
  void Set(ValueRef value, const Layout* layout) {
    value_ = std::move(value);
    layout_ = layout;
  }
  // What FindOverlaps remembers of the call that writes it.
  uint64_t mark() const { return mark_; }
  void set_mark(uint64_t mark) { mark_ = mark; }
  // Keeps the bytes that remain; what is new is uninitialised. Reads.
  void Resize(size_t bytes);

  void release_resources() override {
    value_ = nullptr;
    c10::StorageImpl::release_resources();
  }

 private:
  ValueRef value_;
  const Layout* layout_ = nullptr;
  uint64_t mark_ = 0;
};

// Whether the tensor is elements in one storage: sparse and nested ones are made of several tensors.
inline bool IsPlain(const at::Tensor& tensor) { return tensor.layout() == c10::kStrided && !tensor.is_nested(); }

void ResizeStorage(const c10::Storage& storage, size_t bytes);
// Makes UntypedStorage() and deepcopy give TpuStorages.
void RegisterStorage();

}  // namespace tpu

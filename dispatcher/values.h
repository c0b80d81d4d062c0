// Reading a tensor as a value, and writing a value to a tensor: the strided half of the dispatcher. Everything that
// touches a storage's value goes through here.
//
// Called by recording, copies and reads. Views become "tpu::view" and "tpu::update" calls only when they are read or
// written, and not at all when the tensor covers its storage.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "dispatcher/layout.h"
#include "dispatcher/storage.h"
#include "jit/metrics.h"
#include "jit/value.h"
#include "runtime/buffer.h"

namespace tpu {

// The tensor's kind. Free when it covers its storage.
const Layout* LayoutOf(const c10::TensorImpl& tensor);
// Whether the tensor covers a storage that lies so, and nothing need be recorded to read it.
inline bool IsWhole(const c10::TensorImpl& tensor, const Layout* layout) {
  return layout != nullptr && tensor.storage_offset() == 0 &&
         layout->Is(c10::typeMetaToScalarType(tensor.dtype()), tensor.sizes(), tensor.strides());
}
// The tensor's elements, logical and row-major. `layout` is LayoutOf(tensor).
// `held`: what its storage held then.
ValueRef ReadValue(const c10::TensorImpl& tensor, const Layout* layout, ValueRef* held = nullptr);
inline ValueRef ReadValue(const c10::TensorImpl& tensor) { return ReadValue(tensor, LayoutOf(tensor)); }
// The storage's bytes in their physical order.
ValueRef RowMajorValue(TpuStorage& storage);
// Makes `value` (of the tensor's sizes and dtype) the tensor's elements.
void WriteValue(const c10::TensorImpl& tensor, ValueRef value);
// The same for a value that was made of the tensor's own while its storage held `held`. False, and nothing written,
// where another thread wrote to the storage since.
bool WriteOver(const c10::TensorImpl& tensor, const ValueRef& held, ValueRef value);

// A tensor over a part of the storage.
at::Tensor TensorOver(c10::Storage storage, const Layout* layout, int64_t offset = 0);
// A new tensor over a new storage holding `value`.
at::Tensor MakeTensor(ValueRef value, const Layout* layout, c10::DeviceIndex device);
at::Tensor MakeUninitialized(const Layout* layout, c10::DeviceIndex device);

// A value with memory of its own, from `source`'s row-major elements; without, uninitialised (or filled by the caller
// before anyone else sees it, where memory is addressable).
ValueRef MakeReadyValue(const Layout* layout, c10::DeviceIndex device, const void* source = nullptr);
// What a program is told where it waits for a value: torch.tpu.set_sync_debug_mode.
enum class SyncDebug : uint8_t { kSilent, kWarn, kError };
void SetSyncDebug(SyncDebug mode);
SyncDebug GetSyncDebug();
void TellOfWait(const std::string& what);
// Waits; throws the value's error. The buffer is addressable on the embedded device.
const BufferRef& AwaitBuffer(const ValueRef& value, const std::string& what, CutReason reason = CutReason::kRead);

}  // namespace tpu

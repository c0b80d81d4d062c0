#include "dispatcher/values.h"

#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "dispatcher/allocator.h"
#include "dispatcher/calls.h"
#include "dispatcher/capture.h"
#include "dispatcher/convert.h"
#include "dispatcher/errors.h"
#include "dispatcher/streams.h"
#include "jit/engine.h"

namespace tpu {
namespace {

std::atomic<SyncDebug> sync_debug{SyncDebug::kSilent};

// "tpu::view" or "tpu::update" with the given window of the base's flat elements, in units of `window`'s dtype.
CallRef WindowCall(bool update, const Layout* base, const Layout* window, int64_t offset) {
  static auto* const calls = new CallTable<std::tuple<bool, const Layout*, const Layout*, int64_t>>();
  return calls->Get({update, base, window, offset}, [&](Call& call) {
    call.op = update ? "tpu::update" : "tpu::view";
    const auto ints = [](const Dims& d) { return std::vector<int64_t>(d.begin(), d.end()); };
    const auto operand = [&](int index, const Layout* layout) {
      CallArgument a;
      a.kind = CallArgument::Kind::kTensor;
      a.first = index;
      a.count = 1;
      call.arguments.push_back(a);
      call.operands.push_back({layout->type, false});
    };
    operand(0, base);
    if (update) operand(1, window);
    for (Attribute attribute : {Attribute(ints(window->type.dims)), Attribute(ints(window->strides)), Attribute(offset),
                                Attribute(window->type.dtype)}) {
      CallArgument a;
      a.attribute = std::move(attribute);
      call.arguments.push_back(std::move(a));
    }
    call.results = {update ? base->type : window->type};
    call.promoted = call.results[0].dtype;
  });
}

ValueRef RecordOne(const CallRef& call, std::initializer_list<Operand> operands, c10::DeviceIndex device) {
  ValueRef result;
  RecordCall(device, call, {operands.begin(), operands.size()}, {&result, 1});
  return result;
}

c10::DeviceIndex DeviceOf(const TpuStorage& storage) { return storage.device().index(); }

// The dimensions from the slowest-varying to the fastest.
std::vector<int64_t> PhysicalOrder(const Layout& layout) {
  std::vector<int64_t> order(layout.strides.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return layout.strides[a] > layout.strides[b]; });
  return order;
}

// For a storage where nothing was written yet. The elements are what is asked for, so that bytes need not be
// reinterpreted at every use.
TpuStorage::Content Uninitialized(const TpuStorage& storage, c10::ScalarType type) {
  const size_t size = c10::elementSize(type);
  if (storage.nbytes() % size != 0) return Uninitialized(storage, c10::ScalarType::Byte);
  const Layout* flat = InternLayout(type, {static_cast<int64_t>(storage.nbytes() / size)});
  return {MakeReadyValue(flat, DeviceOf(storage)), flat};
}

// The same bytes by a value whose row-major order is their physical order.
TpuStorage::Content InPhysicalOrder(const TpuStorage::Content& content, c10::DeviceIndex device) {
  const Layout* layout = content.layout;
  std::vector<int64_t> sizes, window_strides;
  const Layout* logical = InternLayout(layout->scalar_type, layout->sizes());  // the value's own order
  for (int64_t d : PhysicalOrder(*layout)) {
    sizes.push_back(layout->type.dims[d]);
    window_strides.push_back(logical->strides[d]);
  }
  const Layout* window = InternLayout(layout->scalar_type, sizes, window_strides);
  return {RecordOne(WindowCall(false, logical, window, 0), {{content.value.get(), 0}}, device),
          InternLayout(layout->scalar_type, sizes)};
}

// Gives the storage a value whose row-major order is its physical order; returns that.
TpuStorage::Content EnsureRowMajor(TpuStorage& storage, c10::ScalarType type) {
  while (true) {
    TpuStorage::Content former = storage.content();
    if (former.value && former.layout->row_major) return former;
    const TpuStorage::Content content =
        former.value ? InPhysicalOrder(former, DeviceOf(storage)) : Uninitialized(storage, type);
    storage.Replace(former.value, content.value, content.layout);
  }
}

bool Covers(const c10::TensorImpl& tensor, const TpuStorage& storage, const Layout* layout) {
  return tensor.storage_offset() == 0 && layout->dense && layout->bytes == storage.nbytes();
}

// Of what lies row-major in the storage. False, and nothing written, where that holds another value meanwhile.
bool WritePart(const c10::TensorImpl& tensor, const Layout* layout, TpuStorage& storage,
               const TpuStorage::Content& base, const ValueRef& value) {
  ValueRef updated = RecordOne(WindowCall(true, base.layout, layout, tensor.storage_offset()),
                               {{base.value.get(), 0}, {value.get(), 0}}, DeviceOf(storage));
  return storage.Replace(base.value, std::move(updated), base.layout);
}

}  // namespace

const Layout* LayoutOf(const c10::TensorImpl& tensor) {
  const TpuStorage& storage = TpuStorage::Of(tensor);
  const c10::ScalarType type = c10::typeMetaToScalarType(tensor.dtype());
  const Layout* layout = storage.layout();
  if (layout != nullptr && layout->Is(type, tensor.sizes(), tensor.strides())) return layout;
  return InternLayout(type, tensor.sizes(), tensor.strides());
}

ValueRef RowMajorValue(TpuStorage& storage) { return EnsureRowMajor(storage, c10::ScalarType::Byte).value; }

ValueRef ReadValue(const c10::TensorImpl& tensor, const Layout* layout, ValueRef* held) {
  TpuStorage& storage = TpuStorage::Of(tensor);
  if (storage.layout() == nullptr && Covers(tensor, storage, layout)) {
    storage.Replace(nullptr, MakeReadyValue(layout, DeviceOf(storage)), layout);
  }
  TpuStorage::Content content = storage.content();
  const auto lies_so = [&] {
    if (content.layout == nullptr || tensor.storage_offset() != 0) return false;
    // Else strides differ only where a size is 1.
    return layout == content.layout ||
           (layout->type == content.layout->type && layout->row_major && content.layout->row_major);
  };
  if (layout->bytes != 0 && !lies_so()) content = EnsureRowMajor(storage, layout->scalar_type);
  if (held != nullptr) *held = content.value;
  if (lies_so()) return std::move(content.value);
  if (layout->bytes == 0) return MakeReadyValue(layout, DeviceOf(storage));
  return RecordOne(WindowCall(false, content.layout, layout, tensor.storage_offset()), {{content.value.get(), 0}},
                   DeviceOf(storage));
}

void WriteValue(const c10::TensorImpl& tensor, ValueRef value) {
  TpuStorage& storage = TpuStorage::Of(tensor);
  const Layout* layout = LayoutOf(tensor);
  if (Covers(tensor, storage, layout)) return storage.Set(std::move(value), layout);
  if (layout->bytes == 0) return;
  while (!WritePart(tensor, layout, storage, EnsureRowMajor(storage, layout->scalar_type), value)) {
  }
}

bool WriteOver(const c10::TensorImpl& tensor, const ValueRef& held, ValueRef value) {
  TpuStorage& storage = TpuStorage::Of(tensor);
  const Layout* layout = LayoutOf(tensor);
  if (Covers(tensor, storage, layout)) return storage.Replace(held, std::move(value), layout);
  if (layout->bytes == 0) return true;
  const TpuStorage::Content base = EnsureRowMajor(storage, layout->scalar_type);
  return base.value == held && WritePart(tensor, layout, storage, base, value);
}

at::Tensor TensorOver(c10::Storage storage, const Layout* layout, int64_t offset) {
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                               c10::scalarTypeToTypeMeta(layout->scalar_type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(layout->sizes(), layout->stride_ref(), offset);
  return tensor;
}

at::Tensor MakeTensor(ValueRef value, const Layout* layout, c10::DeviceIndex device) {
  return TensorOver(c10::Storage(TpuStorage::Make(std::move(value), layout, device)), layout);
}

at::Tensor MakeUninitialized(const Layout* layout, c10::DeviceIndex device) {
  size_t bytes = layout->bytes;
  if (!layout->dense) {
    bytes = c10::elementSize(layout->scalar_type);
    for (size_t i = 0; i < layout->strides.size(); ++i) {
      bytes += (layout->type.dims[i] - 1) * layout->strides[i] * c10::elementSize(layout->scalar_type);
    }
  }
  return TensorOver(c10::Storage(TpuStorage::Make(bytes, device)), layout);
}

ValueRef MakeReadyValue(const Layout* layout, c10::DeviceIndex device, const void* source) {
  return MakeRef<Value>(&layout->type, nullptr, MakeValueOrRaise(device, layout->type, source));
}

void SetSyncDebug(SyncDebug mode) { sync_debug.store(mode, std::memory_order_relaxed); }
SyncDebug GetSyncDebug() { return sync_debug.load(std::memory_order_relaxed); }

void TellOfWait(const std::string& what) {
  const SyncDebug mode = GetSyncDebug();
  if (C10_LIKELY(mode == SyncDebug::kSilent) || Engine::Get().mode() == Mode::kDebug) return;
  TORCH_CHECK(mode != SyncDebug::kError, "called a synchronizing tpu operation: ", what);
  TORCH_WARN("called a synchronizing tpu operation: ", what);
}

const BufferRef& AwaitBuffer(const ValueRef& value, const std::string& what, CutReason reason) {
  TellOfWait(what);
  ThrowIfError(Engine::Get().Await(value, what, reason));
  return value->buffer();
}

}  // namespace tpu

#include "dispatcher/values.h"

#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
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

// Gives the storage a value whose row-major order is its physical order; returns that value's layout. Where nothing was
// written yet the elements are what is asked for, so that bytes need not be reinterpreted at every use.
const Layout* EnsureRowMajor(TpuStorage& storage, c10::ScalarType type) {
  if (!storage.value()) {
    const size_t size = c10::elementSize(type);
    if (storage.nbytes() % size != 0) return EnsureRowMajor(storage, c10::ScalarType::Byte);
    const Layout* flat = InternLayout(type, {static_cast<int64_t>(storage.nbytes() / size)});
    storage.Set(MakeReadyValue(flat, DeviceOf(storage)), flat);
    return flat;
  }
  const Layout* layout = storage.layout();
  if (layout->row_major) return layout;
  std::vector<int64_t> sizes, window_strides;
  const Layout* logical = InternLayout(layout->scalar_type, layout->sizes());  // the value's own order
  for (int64_t d : PhysicalOrder(*layout)) {
    sizes.push_back(layout->type.dims[d]);
    window_strides.push_back(logical->strides[d]);
  }
  const Layout* window = InternLayout(layout->scalar_type, sizes, window_strides);
  ValueRef value = RecordOne(WindowCall(false, logical, window, 0), {{storage.value().get(), 0}}, DeviceOf(storage));
  const Layout* physical = InternLayout(layout->scalar_type, sizes);
  storage.Set(std::move(value), physical);
  return physical;
}

bool Covers(const c10::TensorImpl& tensor, const TpuStorage& storage, const Layout* layout) {
  return tensor.storage_offset() == 0 && layout->dense && layout->bytes == storage.nbytes();
}

}  // namespace

const Layout* LayoutOf(const c10::TensorImpl& tensor) {
  const TpuStorage& storage = TpuStorage::Of(tensor);
  const c10::ScalarType type = c10::typeMetaToScalarType(tensor.dtype());
  const Layout* layout = storage.layout();
  if (layout != nullptr && layout->Is(type, tensor.sizes(), tensor.strides())) return layout;
  return InternLayout(type, tensor.sizes(), tensor.strides());
}

ValueRef RowMajorValue(TpuStorage& storage) {
  EnsureRowMajor(storage, c10::ScalarType::Byte);
  return storage.value();
}

ValueRef ReadValue(const c10::TensorImpl& tensor, const Layout* layout) {
  TpuStorage& storage = TpuStorage::Of(tensor);
  if (!storage.value() && Covers(tensor, storage, layout)) {
    storage.Set(MakeReadyValue(layout, DeviceOf(storage)), layout);
  }
  if (layout == storage.layout() && tensor.storage_offset() == 0) return storage.value();
  if (layout->bytes == 0) return MakeReadyValue(layout, DeviceOf(storage));
  if (storage.layout() != nullptr && layout->type == storage.layout()->type && tensor.storage_offset() == 0 &&
      layout->row_major && storage.layout()->row_major) {
    return storage.value();  // strides differ only where a size is 1
  }
  const Layout* base = EnsureRowMajor(storage, layout->scalar_type);
  return RecordOne(WindowCall(false, base, layout, tensor.storage_offset()), {{storage.value().get(), 0}},
                   DeviceOf(storage));
}

void WriteValue(const c10::TensorImpl& tensor, ValueRef value) {
  TpuStorage& storage = TpuStorage::Of(tensor);
  const Layout* layout = LayoutOf(tensor);
  if (layout->bytes == 0) return;
  if (Covers(tensor, storage, layout)) {
    storage.Set(std::move(value), layout);
    return;
  }
  const Layout* base = EnsureRowMajor(storage, layout->scalar_type);
  ValueRef updated = RecordOne(WindowCall(true, base, layout, tensor.storage_offset()),
                               {{storage.value().get(), 0}, {value.get(), 0}}, DeviceOf(storage));
  storage.Set(std::move(updated), base);
}

at::Tensor MakeTensor(ValueRef value, const Layout* layout, c10::DeviceIndex device) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::make_intrusive<TpuStorage>(std::move(value), layout, device)),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(layout->scalar_type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(layout->sizes(), layout->stride_ref());
  return tensor;
}

at::Tensor MakeUninitialized(const Layout* layout, c10::DeviceIndex device) {
  size_t bytes = layout->bytes;
  if (!layout->dense) {
    bytes = c10::elementSize(layout->scalar_type);
    for (size_t i = 0; i < layout->strides.size(); ++i) {
      bytes += (layout->type.dims[i] - 1) * layout->strides[i] * c10::elementSize(layout->scalar_type);
    }
  }
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(c10::make_intrusive<TpuStorage>(bytes, device)),
                                                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                         c10::scalarTypeToTypeMeta(layout->scalar_type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(layout->sizes(), layout->stride_ref());
  return tensor;
}

ValueRef MakeReadyValue(const Layout* layout, c10::DeviceIndex device, const void* source) {
  return MakeRef<Value>(&layout->type, nullptr, MakeValueOrRaise(device, layout->type, source));
}

const BufferRef& AwaitBuffer(const ValueRef& value, const std::string& what, CutReason reason) {
  ThrowIfError(Engine::Get().Await(value, what, reason));
  return value->buffer();
}

}  // namespace tpu

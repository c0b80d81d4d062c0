// Sparse tensors: their indices and values are tensors of the device. PyTorch's kernels for those of the CPU that are
// written in terms of operators on these parts serve ours; the rest runs on the host.
#include <ATen/core/enum_tag.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/ops/_embedding_bag_backward_native.h>
#include <ATen/ops/_to_sparse_bsc_native.h>
#include <ATen/ops/_to_sparse_bsr_native.h>
#include <ATen/ops/_to_sparse_csc_native.h>
#include <ATen/ops/_to_sparse_csr_native.h>
#include <ATen/ops/_to_sparse_native.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/strides.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string>

#include "dispatcher/calls.h"
#include "dispatcher/host_kernels.h"
#include "dispatcher/storage.h"

namespace at::native {

// Of a header that torch doesn't install.
using flatten_indices_fn = at::Tensor (*)(const at::Tensor&, c10::IntArrayRef);
DECLARE_DISPATCH(flatten_indices_fn, flatten_indices_stub)

}  // namespace at::native

namespace tpu {
namespace {

using c10::DispatchKey;

at::ArrayRef<c10::IValue> Arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  return torch::jit::last(stack, op.schema().arguments().size());
}

template <DispatchKey cpu>
void ByParts(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::OptionalDeviceGuard guard;
  for (const c10::IValue& v : Arguments(op, *stack)) {
    if (v.isDevice()) guard.reset_device(v.toDevice());
    if (v.isTensor() && v.toTensor().is_privateuseone()) guard.reset_device(v.toTensor().device());
  }
  op.redispatchBoxed(c10::DispatchKeySet(cpu), stack);
}

void OnHost(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  CheckOneDevice(op, Arguments(op, *stack));
  RunNow(Operator::Of(op), *stack);
}

// Where one of the two is dense, PyTorch's kernel gathers from it; the places of two sparse ones are met in memory.
void MeetPlaces(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::ArrayRef<c10::IValue> two = Arguments(op, *stack).slice(0, 2);
  const bool dense = std::any_of(two.begin(), two.end(), [](const auto& v) { return IsPlain(v.toTensor()); });
  dense ? ByParts<DispatchKey::SparseCPU>(op, stack) : OnHost(op, stack);
}

// To a dense tensor by its rows: an embedding's gradient reaches its weight without a read.
void AddOut(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::Tensor self = torch::jit::peek(*stack, 0, 4).toTensor(), other = torch::jit::peek(*stack, 1, 4).toTensor();
  const c10::Scalar alpha = torch::jit::peek(*stack, 2, 4).toScalar();
  const at::Tensor out = torch::jit::peek(*stack, 3, 4).toTensor();
  const c10::ScalarType type = out.scalar_type();
  const bool rows = IsPlain(self) && IsPlain(out) && other.is_sparse() && other.sparse_dim() > 0;
  if (!rows || self.device() != other.device() || self.device() != out.device() || self.sizes() != other.sizes() ||
      type != at::result_type(self, other) || !c10::canCast(alpha.type(), type)) {
    return OnHost(op, stack);
  }
  if (!out.is_same(self)) out.resize_(self.sizes()).copy_(self);
  c10::List<std::optional<at::Tensor>> places;
  for (const at::Tensor& places_of_dim : other._indices().unbind()) places.push_back(places_of_dim);
  const at::Tensor values = other._values().to(type);
  out.index_put_(places, alpha.equal(1) ? values : values.mul(alpha), /*accumulate=*/true);
  torch::jit::drop(*stack, 4);
  stack->push_back(out);
}

// How many of the rows, which are in order, lie before each. The CPU's kernel takes them to lie one after the other.
at::Tensor CountRows(const at::Tensor& rows, int64_t size, bool out_int32) {
  return at::searchsorted(rows.contiguous(), at::arange(size + 1, rows.options()), out_int32);
}

// (dims, n) positions as n row-major ones in a tensor of these sizes.
at::Tensor FlattenIndices(const at::Tensor& indices, c10::IntArrayRef sizes) {
  const at::Tensor strides =
      at::tensor(c10::IntArrayRef(c10::contiguous_strides(sizes)), at::kLong).to(indices.device());
  return indices.to(at::kLong).mul(strides.unsqueeze(1)).sum(0);
}

// What PyTorch has for tensors without elements reads none, and what works element by element leaves that to values.
bool NeedsNoMemory(const c10::OperatorHandle& op, DispatchKey meta) {
  const std::string& name = op.operator_name().name;
  for (const char* of_parts : {"aten::copy_", "aten::clone", "aten::_to_dense", "aten::is_pinned",
                               "aten::view_as_complex", "aten::view_as_real"}) {
    if (name == of_parts) return true;
  }
  if (name.starts_with("aten::_to_sparse")) return false;
  return op.hasKernelForDispatchKey(meta) || op.hasTag(at::Tag::pointwise);
}

template <DispatchKey key, DispatchKey cpu, DispatchKey meta>
void ServeOthers(torch::Library& m) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || name.getNamespace() != "aten" || !op->hasKernelForDispatchKey(cpu) || op->hasKernelForDispatchKey(key)) {
      continue;
    }
    m.impl(c10::toString(name).c_str(), NeedsNoMemory(*op, meta)
                                            ? torch::CppFunction::makeFromBoxedFunction<&ByParts<cpu>>()
                                            : torch::CppFunction::makeFromBoxedFunction<&OnHost>());
  }
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("add.out", torch::CppFunction::makeFromBoxedFunction<&AddOut>());
  m.impl("mul.out", torch::CppFunction::makeFromBoxedFunction<&MeetPlaces>());
  m.impl("sparse_mask", torch::CppFunction::makeFromBoxedFunction<&MeetPlaces>());
  ServeOthers<DispatchKey::SparsePrivateUse1, DispatchKey::SparseCPU, DispatchKey::SparseMeta>(m);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("add.out", torch::CppFunction::makeFromBoxedFunction<&OnHost>());
  ServeOthers<DispatchKey::SparseCsrPrivateUse1, DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrMeta>(m);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using ToSparse =
      at::Tensor(const at::Tensor&, std::optional<c10::Layout>, at::OptionalIntArrayRef, std::optional<int64_t>);
  using ToSparseOfDim = at::Tensor(const at::Tensor&, int64_t);
  m.impl("_embedding_bag_backward", &at::native::_embedding_bag_backward_symint);
  m.impl("_convert_indices_from_coo_to_csr", &CountRows);
  m.impl("_to_sparse", static_cast<ToSparse*>(&at::native::dense_to_sparse));
  m.impl("_to_sparse.sparse_dim", static_cast<ToSparseOfDim*>(&at::native::dense_to_sparse));
  m.impl("_to_sparse_csr", &at::native::dense_to_sparse_csr);
  m.impl("_to_sparse_csc", &at::native::dense_to_sparse_csc);
  m.impl("_to_sparse_bsr", &at::native::dense_to_sparse_bsr);
  m.impl("_to_sparse_bsc", &at::native::dense_to_sparse_bsc);
}

}  // namespace
}  // namespace tpu

namespace at::native {

REGISTER_PRIVATEUSE1_DISPATCH(flatten_indices_stub, &tpu::FlattenIndices)

}  // namespace at::native

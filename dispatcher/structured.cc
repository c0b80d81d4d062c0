// PyTorch gives every structured operator a kernel for devices that have only its out= form: it computes what the
// results are, makes them, and calls that form. PrivateUse3 is such a device, whose out= forms do nothing. It has
// kernels of norms, too (norms.cc).
#include "dispatcher/structured.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/relu_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "dispatcher/storage.h"

namespace tpu {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse3);

void DoNothing(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const Operator& op = Operator::Of(handle);
  TORCH_CHECK_NOT_IMPLEMENTED(!op.out.empty(), "tpu: ", op.name, " asks for elements");
  const auto arguments = torch::jit::pop(*stack, op.kinds.size());
  for (const int argument : op.return_alias) stack->push_back(arguments[argument]);
}

at::Tensor CopyNothing(const at::Tensor&, const at::Tensor& destination, bool) { return destination; }

TORCH_LIBRARY_IMPL(_, PrivateUse3, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&DoNothing>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse3, m) {
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("relu", &at::native::relu);  // made of a structured one
  m.impl("relu_", &at::native::relu_);
  m.impl("_copy_from", &CopyNothing);
}

}  // namespace

bool IsStructured(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse3) ||
         (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
          op.hasKernelForDispatchKey(c10::DispatchKey::CPU));
}

at::Tensor StructuredStandIn(const at::Tensor& t) {
  const size_t bytes = at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.itemsize());
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::make_intrusive<TpuStorage>(bytes, t.device().index())), kKeys, t.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides());
  return made;
}

bool InferStructured(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  at::AutoDispatchBelowADInplaceOrView guard;
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    return false;
  }
  return true;
}

}  // namespace tpu

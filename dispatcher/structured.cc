// PyTorch gives every structured operator a kernel for devices that have only its out= form: it computes what the
// results are, makes them, and calls that form. PrivateUse3 is such a device, whose out= forms do nothing. It also has
// kernels of layer norm, which is not structured, and whose inference by the Meta key runs some fifty Python functions.
#include "dispatcher/structured.h"

#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <vector>

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

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Of other cases, the Meta key's inference.
void CheckPlainLayerNorm(const at::Tensor& input) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(input.scalar_type()) && input.numel() > 0, "tpu: asks the Meta key");
}

Three LayerNorm(const at::Tensor& input, at::IntArrayRef normalized, const std::optional<at::Tensor>& weight,
                const std::optional<at::Tensor>& bias, double) {
  CheckPlainLayerNorm(input);
  at::native::_check_layer_norm_inputs(input, normalized, weight.value_or(at::Tensor()), bias.value_or(at::Tensor()));
  std::vector<int64_t> rows(input.sizes().begin(), input.sizes().end());
  std::fill(rows.end() - static_cast<ptrdiff_t>(normalized.size()), rows.end(), 1);
  const auto moments = input.options().dtype(at::toOpMathType(input.scalar_type()));
  return {at::empty(input.sizes(), input.options()), at::empty(rows, moments), at::empty(rows, moments)};
}

Three LayerNormBackward(const at::Tensor& grad, const at::Tensor& input, at::IntArrayRef normalized, const at::Tensor&,
                        const at::Tensor&, const std::optional<at::Tensor>& weight,
                        const std::optional<at::Tensor>& bias, std::array<bool, 3> wanted) {
  CheckPlainLayerNorm(input);
  TORCH_CHECK_NOT_IMPLEMENTED(grad.sizes() == input.sizes(), "tpu: asks the Meta key");
  const auto like = [&](bool is_wanted, at::IntArrayRef sizes, const std::optional<at::Tensor>& t) {
    return is_wanted && t && t->defined() ? at::empty(sizes, t->options()) : at::Tensor();
  };
  return {like(wanted[0], input.sizes(), input), like(wanted[1], normalized, weight),
          like(wanted[2], normalized, bias)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse3, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&DoNothing>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse3, m) {
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_copy_from", &CopyNothing);
  m.impl("native_layer_norm", &LayerNorm);
  m.impl("native_layer_norm_backward", &LayerNormBackward);
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

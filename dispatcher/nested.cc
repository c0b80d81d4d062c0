// Nested tensors of strided layout: a buffer on the device, and on the host where the parts lie in it. PyTorch's
// kernels for those of the CPU are written in terms of operators on the buffer and its parts, so they serve ours.
#include <ATen/native/layer_norm.h>
#include <ATen/ops/_nested_from_padded_native.h>
#include <ATen/ops/_nested_tensor_from_mask_left_aligned_native.h>
#include <ATen/ops/_nested_tensor_from_mask_native.h>
#include <ATen/ops/_nested_view_from_buffer_native.h>
#include <ATen/ops/_transform_bias_rescale_qkv.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "dispatcher/calls.h"
#include "dispatcher/host_kernels.h"

namespace at::native {
namespace {

Tensor AsRow(const Tensor& weight, int64_t width) { return weight.defined() ? weight.reshape({width}) : weight; }

void NormalizeRows(const Tensor& x, const Tensor& gamma, const Tensor& beta, int64_t rows, int64_t width, double eps,
                   Tensor* y, Tensor* mean, Tensor* rstd) {
  const auto [normal, m, r] =
      at::native_layer_norm(x.reshape({rows, width}), {width}, AsRow(gamma, width), AsRow(beta, width), eps);
  y->copy_(normal.view_as(*y));
  mean->copy_(m.view_as(*mean));
  rstd->copy_(r.view_as(*rstd));
}

void NormalizeRowsBackward(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                           const Tensor& gamma, int64_t rows, int64_t width, Tensor* dx, Tensor* dgamma,
                           Tensor* dbeta) {
  const std::array<Tensor*, 3> wanted = {dx, dgamma, dbeta};
  const Tensor weight = AsRow(gamma, width);
  const auto [x_grad, gamma_grad, beta_grad] = at::native_layer_norm_backward(
      dy.reshape({rows, width}), x.reshape({rows, width}), {width}, mean.view({rows, 1}), rstd.view({rows, 1}), weight,
      weight, {dx->defined(), dgamma->defined(), dbeta->defined()});
  const std::array<Tensor, 3> made = {x_grad, gamma_grad, beta_grad};
  for (size_t i = 0; i < made.size(); ++i) {
    if (wanted[i]->defined()) wanted[i]->copy_(made[i].view_as(*wanted[i]));
  }
}

}  // namespace
REGISTER_PRIVATEUSE1_DISPATCH(LayerNormKernel, &NormalizeRows)
REGISTER_PRIVATEUSE1_DISPATCH(LayerNormBackwardKernel, &NormalizeRowsBackward)
}  // namespace at::native

namespace tpu {
namespace {

void ByParts(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::NestedTensorCPU), stack);
}

// As the kernel for the CPU does, which reads its memory.
std::tuple<at::Tensor, at::Tensor, at::Tensor> SplitHeads(const at::Tensor& qkv, const at::Tensor& bias,
                                                          int64_t heads) {
  return at::_transform_bias_rescale_qkv(qkv.to_padded_tensor(0), bias, heads);
}

// Each by its name: where there is a composite kernel, too, a fallback would not be asked.
TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("_transform_bias_rescale_qkv", &SplitHeads);
  for (const char* reads_memory : {"sum.dim_IntList", "_nested_sum_backward"}) {
    m.impl(reads_memory, torch::CppFunction::makeFromBoxedFunction<&RunNowBoxed>());
  }
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || name.getNamespace() != "aten" || !op->hasKernelForDispatchKey(c10::DispatchKey::NestedTensorCPU) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::NestedTensorPrivateUse1)) {
      continue;
    }
    m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&ByParts>());
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_from_padded", &at::native::nested_from_padded_generic);
  m.impl("_nested_tensor_from_mask", &at::native::NestedTensor_nested_tensor_from_mask);
  m.impl("_nested_tensor_from_mask_left_aligned", &at::native::NestedTensor_nested_tensor_from_mask_left_aligned);
  m.impl("_nested_view_from_buffer", &at::native::_nested_view_from_buffer);
}

}  // namespace
}  // namespace tpu

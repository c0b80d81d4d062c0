// Which way scaled_dot_product_attention goes: where the CPU has its flash kernel, that operator is recorded (the
// compiler knows its meaning, tier 0 its kernel); elsewhere PyTorch takes it apart.
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <torch/library.h>

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &_fused_sdp_choice_cpp)
}  // namespace at::native

namespace tpu {
namespace {

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_fused_sdp_choice", &at::native::_fused_sdp_choice_cpp); }

}  // namespace
}  // namespace tpu

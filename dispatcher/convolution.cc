// TorchScript's traces hold `_convolution`, which PyTorch's own convolution calls on every device; here it is the
// other way round: convolution is the operator that is recorded, and goes by `_convolution` only to be traced.
#include <ATen/TracerMode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/convolution.h>
#include <torch/library.h>

#include <optional>

#include "dispatcher/calls.h"
#include "dispatcher/record.h"

namespace tpu {
namespace {

void Convolve(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static Operator& recorded = Operator::Of(op);
  if (!at::tracer::impl::is_dispatch_enabled()) return Record(recorded, stack);
  static const auto traced = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_convolution", "");
  torch::jit::push(*stack, false, false, true, true);
  traced.callBoxed(stack);
}

// The flags are for libraries of CUDA.
at::Tensor Traced(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                  c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                  bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups, bool, bool, bool, bool) {
  return at::convolution_symint(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&Convolve>());
  m.impl("_convolution", &Traced);
}

}  // namespace
}  // namespace tpu

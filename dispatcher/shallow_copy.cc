// `parameter.data = other` and Module.to('tpu') ask whether one tensor may take the other's place. Tensors of this
// device are plain strided TensorImpls, so a dense one of the CPU and a dense one of tpu may, as with CUDA.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace tpu {
namespace {

bool IsPlainStrided(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && (tensor.is_cpu() || tensor.is_privateuseone()) && !tensor.is_quantized();
}

bool HasCompatibleShallowCopyType(const at::Tensor& self, const at::Tensor& from) {
  return IsPlainStrided(self) && IsPlainStrided(from);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(HasCompatibleShallowCopyType));
}

// Above the Python key, so that __torch_dispatch__ of a subclass is not asked: it isn't for tensors of other devices.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(HasCompatibleShallowCopyType));
}

}  // namespace
}  // namespace tpu

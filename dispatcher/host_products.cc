#include "dispatcher/host_products.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace tpu {
namespace {

bool IsPlainF32(const at::Tensor& t) {
  return t.layout() == c10::kStrided && t.scalar_type() == c10::kFloat && t.device().is_cpu() && t.numel() > 0;
}

bool IsOne(const c10::IValue& factor) { return factor.toScalar().equal(1); }

// One matrix or a batch of them, with rows or columns that lie without gaps.
struct Matrices {
  explicit Matrices(const at::Tensor& t) : tensor(t) {
    if (Lies(t.size(-1), t.stride(-1), t.stride(-2))) return;
    transposed = Lies(t.size(-2), t.stride(-2), t.stride(-1));
    if (!transposed) tensor = t.contiguous();
  }

  int64_t step() const { return tensor.stride(transposed ? -1 : -2); }  // from one of those to the next
  int64_t batch_step() const { return tensor.dim() == 3 ? tensor.stride(0) : 0; }

  at::Tensor tensor;
  bool transposed = false;

 private:
  static bool Lies(int64_t size, int64_t stride, int64_t step) { return stride == 1 && step >= size; }
};

at::Tensor Multiply(Device& device, const at::Tensor& left, const at::Tensor& right) {
  const Matrices a(left), b(right);
  std::vector<int64_t> dims = left.sizes().vec();
  dims.back() = right.size(-1);
  at::Tensor c = at::empty(dims, left.options());
  device.Multiply({.batch = left.dim() == 3 ? left.size(0) : 1,
                   .m = left.size(-2),
                   .n = right.size(-1),
                   .k = left.size(-1),
                   .trans_a = a.transposed,
                   .trans_b = b.transposed,
                   .lda = a.step(),
                   .ldb = b.step(),
                   .stride_a = a.batch_step(),
                   .stride_b = b.batch_step(),
                   .a = a.tensor.const_data_ptr<float>(),
                   .b = b.tensor.const_data_ptr<float>(),
                   .c = c.mutable_data_ptr<float>()});
  return c;
}

// The rows of values lie without gaps, whatever the strides of the tensors that PyTorch has checked.
at::Tensor AlignRows(const at::Tensor& t) {
  const int64_t columns = t.size(-1), unit = 16 / static_cast<int64_t>(t.element_size());
  if (columns > 0 && t.stride(-2) % unit == 0) return t;
  std::vector<int64_t> dims = t.sizes().vec();
  dims.back() = std::max<int64_t>(1, (columns + unit - 1) / unit) * unit;
  return at::empty(dims, t.options()).narrow(-1, 0, columns).copy_(t);
}

}  // namespace

bool MultiplyOnDevice(Device& device, const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (!op.schema().overload_name().empty()) return false;
  const std::string& name = op.schema().name();
  const bool adds = name == "aten::addmm" || name == "aten::baddbmm";
  if (!adds && name != "aten::mm" && name != "aten::bmm") return false;
  const auto first = stack.end() - (adds ? 5 : 2);
  if (adds && !(IsPlainF32(first->toTensor()) && IsOne(first[3]) && IsOne(first[4]))) return false;
  const at::Tensor &left = first[adds].toTensor(), &right = first[adds + 1].toTensor();
  if (!IsPlainF32(left) || !IsPlainF32(right) || !device.Multiply({})) return false;
  at::Tensor product = Multiply(device, left, right);
  if (adds) product.add_(first->toTensor());
  stack.erase(first, stack.end());
  stack.emplace_back(std::move(product));
  return true;
}

void AlignGroups(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (op.schema().name() != "aten::_grouped_mm") return;
  const auto first = stack.end() - 5;
  for (int i : {0, 1}) first[i] = AlignRows(first[i].toTensor());
}

}  // namespace tpu

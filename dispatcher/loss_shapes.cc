// What losses return, as shapes.cc has it of other operators.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

#include "dispatcher/structured.h"

namespace tpu {
namespace {

using Optional = std::optional<at::Tensor>;
using Two = std::tuple<at::Tensor, at::Tensor>;

// --- element by element ---

at::Tensor MseBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target, int64_t) {
  CheckPlain(self.is_floating_point() && self.sizes() == target.sizes() && self.scalar_type() == target.scalar_type() &&
             self.scalar_type() == grad.scalar_type() && at::is_expandable_to(grad.sizes(), self.sizes()));
  return at::empty_like(self, LEGACY_CONTIGUOUS_MEMORY_FORMAT);
}

at::Tensor Reduced(const at::Tensor& self, const at::Tensor& target, int64_t reduction) {
  CheckPlain(self.is_floating_point() && self.scalar_type() == target.scalar_type() && self.sizes() == target.sizes());
  return reduction == at::Reduction::None ? at::empty_like(self) : at::empty({}, self.options());
}
at::Tensor CrossEntropyOfTwo(const at::Tensor& self, const at::Tensor& target, const Optional& weight,
                             int64_t reduction) {
  CheckPlain(!Given(weight));
  return Reduced(self, target, reduction);
}
at::Tensor CrossEntropyOfTwoBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                     const Optional& weight, int64_t) {
  CheckPlain(grad.scalar_type() == self.scalar_type() && !Given(weight));
  return Reduced(self, target, at::Reduction::None);
}
at::Tensor Huber(const at::Tensor& self, const at::Tensor& target, int64_t reduction, double) {
  return Reduced(self, target, reduction);
}

at::Tensor SoftMargin(const at::Tensor& self, const at::Tensor& target, int64_t reduction) {
  return Reduced(self, target, reduction);
}
at::Tensor SoftMarginBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target, int64_t) {
  CheckPlain(grad.scalar_type() == self.scalar_type() && at::is_expandable_to(grad.sizes(), self.sizes()));
  return Reduced(self, target, at::Reduction::None);
}

// --- of rows: of one, there is one number in any case ---

at::Tensor RowsReduced(const at::Tensor& self, int64_t reduction) {
  CheckPlain(self.is_floating_point() && (self.dim() == 1 || self.dim() == 2) && self.numel() > 0);
  const bool each = reduction == at::Reduction::None && self.dim() == 2;
  return each ? at::empty({self.size(0)}, self.options()) : at::empty({}, self.options());
}

at::Tensor MultiMargin(const at::Tensor& self, const at::Tensor& target, const at::Scalar&, const at::Scalar&,
                       const Optional&, int64_t reduction) {
  CheckPlain(self.dim() == 2 && target.dim() == 1 && target.size(0) == self.size(0));
  return RowsReduced(self, reduction);
}
at::Tensor MultiMarginBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                               const at::Scalar& p, const at::Scalar& margin, const Optional& weight,
                               int64_t reduction) {
  CheckPlain(MultiMargin(self, target, p, margin, weight, reduction).sizes() == grad.sizes());
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}

Two MultiLabelMargin(const at::Tensor& self, const at::Tensor& target, int64_t reduction) {
  CheckPlain(self.sizes() == target.sizes());
  return {RowsReduced(self, reduction), at::empty(target.sizes(), self.options())};
}
at::Tensor MultiLabelMarginBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                    int64_t reduction, const at::Tensor& is_target) {
  CheckPlain(self.sizes() == target.sizes() && self.sizes() == is_target.sizes() &&
             RowsReduced(self, reduction).sizes() == grad.sizes());
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}

// --- of images whose every position has a class ---

Two ClassesOfPositions(const at::Tensor& self, const at::Tensor& target, const Optional& weight, int64_t reduction,
                       c10::SymInt) {
  CheckPlain(self.is_floating_point() && self.dim() == 4 && self.numel() > 0 && target.dim() == 3 &&
             target.scalar_type() == c10::kLong && target.size(0) == self.size(0) && target.size(1) == self.size(2) &&
             target.size(2) == self.size(3));
  CheckPlain(!Given(weight) ||
             (weight->dim() == 1 && weight->size(0) == self.size(1) && weight->scalar_type() == self.scalar_type()));
  const at::IntArrayRef each = reduction == at::Reduction::None ? target.sizes() : at::IntArrayRef();
  return {at::empty(each, self.options()), at::empty({}, self.options())};
}
at::Tensor ClassesOfPositionsBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                      const Optional& weight, int64_t reduction, c10::SymInt ignored,
                                      const at::Tensor& total) {
  const auto [loss, sum] = ClassesOfPositions(self, target, weight, reduction, std::move(ignored));
  CheckPlain(grad.sizes() == loss.sizes() && grad.scalar_type() == self.scalar_type() && total.numel() == 1);
  return at::empty_like(self);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse3, m) {
  m.impl("binary_cross_entropy", &CrossEntropyOfTwo);
  m.impl("binary_cross_entropy_backward", &CrossEntropyOfTwoBackward);
  m.impl("huber_loss", &Huber);
  m.impl("mse_loss_backward", &MseBackward);
  m.impl("multi_margin_loss", &MultiMargin);
  m.impl("multi_margin_loss_backward", &MultiMarginBackward);
  m.impl("multilabel_margin_loss_backward", &MultiLabelMarginBackward);
  m.impl("multilabel_margin_loss_forward", &MultiLabelMargin);
  m.impl("nll_loss2d_backward", &ClassesOfPositionsBackward);
  m.impl("nll_loss2d_forward", &ClassesOfPositions);
  m.impl("soft_margin_loss", &SoftMargin);
  m.impl("soft_margin_loss_backward", &SoftMarginBackward);
}

}  // namespace
}  // namespace tpu

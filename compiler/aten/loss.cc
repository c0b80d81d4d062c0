// Loss functions and their gradients. Reduction: 0 none, 1 mean, 2 sum.
#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

enum Reduction { kNoReduction = 0, kMean = 1, kSum = 2 };

Tensor Total(Tensor x) { return ir::Sum(x, AllDims(x)); }

Tensor Reduced(Tensor loss, int64_t reduction) {
  if (reduction == kNoReduction) return loss;
  Tensor total = Total(loss);
  return reduction == kMean ? total / static_cast<double>(loss.elements()) : total;
}

// What the gradient of each element's loss is multiplied by.
Tensor Upstream(Tensor grad, Tensor x, int64_t reduction) {
  return reduction == kMean ? grad / static_cast<double>(x.elements()) : grad;
}

// Class scores at [N, C] or [C] (or [N, C, H, W]): class dim, target kept there as size 1, weight of each target.
struct Classes {
  int64_t dim;
  Tensor index;   // target in range, with the class dim kept
  Tensor weight;  // 0 where ignored
  Tensor ignored;

  // For each target; what is ignored adds nothing, whatever it is.
  Tensor Weighed(Tensor x) const { return ir::Select(ignored, 0, -(weight * x)); }
};

Classes ReadTarget(AtenCall& c, Tensor x, Tensor target, int weight, int64_t ignore) {
  Classes k;
  k.dim = x.rank() == 1 ? 0 : 1;
  target = ir::Convert(target, DType::kInt64);
  if (x.rank() == 1 && target.rank() == 1) target = ir::Reshape(target, {});
  target = ir::Unsqueeze(target, k.dim);
  k.ignored = ir::Eq(target, c.emitter().Integer(DType::kInt64, ignore));
  k.index = ir::Select(k.ignored, 0, target);
  k.weight = c.has(weight) ? ir::Take(In(c, weight), k.index, 0) : c.emitter().Constant(x.dtype(), 1, k.index.dims());
  k.weight = ir::Select(k.ignored, 0, k.weight);
  return k;
}

Result NllLoss(AtenCall& c) {  // (log_probs, target, weight, reduction, ignore_index) -> loss, total_weight
  Tensor x = In(c, 0);
  if (x.elements() == 0) return Result::Decline();
  Classes k = ReadTarget(c, x, c.tensor(1), 2, c.integer(4, -100));
  int64_t reduction = c.integer(3, kMean);
  Tensor loss = k.Weighed(ir::TakeAlong(x, k.index, k.dim));
  Tensor total_weight = Total(k.weight);
  if (reduction == kNoReduction) {
    return {ir::Reshape(loss, c.result_dims()), c.emitter().Constant(x.dtype(), 0, c.result_dims(1))};
  }
  Tensor total = Total(loss);
  return {reduction == kMean ? total / total_weight : total, total_weight};
}

// (dy, log_probs, target, weight, reduction, ignore_index, total_weight)
Result NllLossBackward(AtenCall& c) {
  Tensor dy = In(c, 0), x = In(c, 1);
  Classes k = ReadTarget(c, x, c.tensor(2), 3, c.integer(5, -100));
  int64_t reduction = c.integer(4, kMean);
  if (reduction == kMean) dy = dy / ir::Reshape(In(c, 6), {});
  if (reduction == kNoReduction && dy.rank() > 0) dy = ir::Reshape(dy, k.index.dims());
  if (reduction != kNoReduction) dy = ir::Reshape(dy, {});
  Tensor classes = c.emitter().Iota(DType::kInt64, x.dims(), k.dim);
  return ir::Select(ir::Eq(classes, k.index), k.Weighed(dy), 0);
}

// log of a probability, not below -100.
Tensor BoundedLog(Tensor log) { return ir::Max(log, -100); }

Result BinaryCrossEntropy(AtenCall& c) {  // (x, target, weight, reduction)
  Tensor x = In(c, 0), t = In(c, 1);
  x = ir::Require(x, ir::Ge(x, 0) & ir::Le(x, 1));
  Tensor loss = (t - 1.0) * BoundedLog(ir::Log1p(-x)) - t * BoundedLog(ir::Log(x));
  if (c.has(2)) loss = loss * In(c, 2);
  return Reduced(loss, c.integer(3, kMean));
}
Result BinaryCrossEntropyBackward(AtenCall& c) {  // (dy, x, target, weight, reduction)
  Tensor dy = In(c, 0), x = In(c, 1), t = In(c, 2);
  Tensor dx = dy * (x - t) / ir::Max((1.0 - x) * x, 1e-12);
  if (c.has(3)) dx = dx * In(c, 3);
  return Upstream(dx, x, c.integer(4, kMean));
}
Result BinaryCrossEntropyWithLogits(AtenCall& c) {  // (x, target, weight, pos_weight, reduction)
  Tensor x = In(c, 0), t = In(c, 1);
  Tensor log_sigmoid = ir::Min(x, 0) - ir::Log1p(ir::Exp(-ir::Abs(x)));
  Tensor loss;
  if (c.has(3)) {
    Tensor log_weight = (In(c, 3) - 1.0) * t + 1.0;
    loss = (1.0 - t) * x - log_weight * log_sigmoid;
  } else {
    loss = (1.0 - t) * x - log_sigmoid;
  }
  if (c.has(2)) loss = loss * In(c, 2);
  return Reduced(loss, c.integer(4, kMean));
}

Result MseLoss(AtenCall& c) {  // (x, target, reduction)
  Tensor d = In(c, 0) - In(c, 1);
  return Reduced(d * d, c.integer(2, kMean));
}
Result MseLossBackward(AtenCall& c) {  // (dy, x, target, reduction)
  Tensor dy = In(c, 0), d = In(c, 1) - In(c, 2);
  double n = c.integer(3, kMean) == kMean ? static_cast<double>(d.elements()) : 1.0;
  return d * (2.0 / n) * dy;
}

Result SmoothL1(AtenCall& c) {  // (x, target, reduction, beta)
  Tensor z = ir::Abs(In(c, 0) - In(c, 1)), beta = c.as(3, z.dtype(), 1);
  return Reduced(ir::Select(z < beta, 0.5 * z * z / beta, z - 0.5 * beta), c.integer(2, kMean));
}
Result SmoothL1Backward(AtenCall& c) {  // (dy, x, target, reduction, beta)
  Tensor d = In(c, 1) - In(c, 2), beta = In(c, 4);
  Tensor slope = ir::Select(ir::Abs(d) >= beta, ir::Sign(d), d / beta);
  return Upstream(slope * In(c, 0), d, c.integer(3, kMean));
}

Result Huber(AtenCall& c) {  // (x, target, reduction, delta)
  Tensor z = ir::Abs(In(c, 0) - In(c, 1)), delta = c.as(3, z.dtype(), 1);
  return Reduced(ir::Select(z < delta, 0.5 * z * z, delta * (z - 0.5 * delta)), c.integer(2, kMean));
}
Result HuberBackward(AtenCall& c) {  // (dy, x, target, reduction, delta)
  Tensor d = In(c, 1) - In(c, 2), delta = In(c, 4);
  Tensor slope = ir::Select(d <= -delta, -delta, ir::Select(d >= delta, delta, d));
  return Upstream(slope * In(c, 0), d, c.integer(3, kMean));
}

Result SoftMargin(AtenCall& c) {  // (x, target, reduction)
  return Reduced(ir::Log1p(ir::Exp(-(In(c, 1) * In(c, 0)))), c.integer(2, kMean));
}
Result SoftMarginBackward(AtenCall& c) {  // (dy, x, target, reduction)
  Tensor x = In(c, 1), t = In(c, 2), z = ir::Exp(-(t * x));
  return Upstream(-(t * z) / (z + 1.0) * In(c, 0), x, c.integer(3, kMean));
}

// Class scores at [N, C], of which a sample's may be a vector or one number. Where another class comes within the
// margin of the target's, by how much; 0 elsewhere, and for no numbers.
struct MultiMargin {
  int64_t samples, classes;
  bool squared;
  Tensor x, target, is_target, within, weight;

  MultiMargin(AtenCall& c, int first) : squared(c.real(first + 2, 1) == 2) {
    const Tensor scores = In(c, first);
    samples = scores.rank() == 2 ? scores.size(0) : 1;
    classes = scores.rank() > 0 ? scores.size(-1) : 1;
    x = Rows(scores);
    target = Rows(c.as(first + 1, DType::kInt64));
    is_target = ir::Eq(c.emitter().Iota(DType::kInt64, x.dims(), 1), target);
    const Tensor z = c.as(first + 3, x.dtype(), 1) - ir::TakeAlong(x, target, 1) + x;
    within = ir::Select(ir::Not(is_target) & (z > 0), z, 0);
    if (c.has(first + 4)) weight = ir::Take(In(c, first + 4), target, 0);
  }
  Tensor Rows(Tensor t) const { return ir::Reshape(t, {samples, t.elements() / samples}); }
  Tensor Weighed(Tensor t) const { return weight ? t * ir::Reshape(weight, {samples, 1}) : t; }
};

Result MultiMarginLoss(AtenCall& c) {  // (x, target, p, margin, weight, reduction)
  if (c.tensor(0).elements() == 0) return Result::Decline();
  const MultiMargin m(c, 0);
  const Tensor terms = m.Weighed(m.squared ? m.within * m.within : m.within);
  const Tensor loss = ir::Sum(terms, {1}) / static_cast<double>(m.classes);
  const int64_t reduction = c.integer(5, kMean);
  return reduction == kNoReduction ? ir::Reshape(loss, c.result_dims()) : Reduced(loss, reduction);
}
Result MultiMarginLossBackward(AtenCall& c) {  // (dy, x, target, p, margin, weight, reduction)
  if (c.tensor(1).elements() == 0) return Result::Decline();
  const MultiMargin m(c, 1);
  const Tensor slope = m.Weighed(m.squared ? 2 * m.within : ir::Convert(m.within > 0, m.x.dtype()));
  const Tensor dx = ir::Select(m.is_target, -ir::Sum(slope, {1}, true), slope);
  const auto count = static_cast<double>(c.integer(6, kMean) == kMean ? m.samples * m.classes : m.classes);
  const Tensor dy = In(c, 0), each = dy.elements() == 1 ? ir::Reshape(dy, {1, 1}) : m.Rows(dy);
  return ir::Reshape(dx * (ir::BroadcastTo(each, {m.samples, 1}) / count), c.result_dims());
}

}  // namespace

void RegisterLoss(Registry& r) {
  r.Add({"aten::nll_loss_forward", "aten::nll_loss2d_forward"}, NllLoss);
  r.Add({"aten::nll_loss_backward", "aten::nll_loss2d_backward"}, NllLossBackward);
  r.Add("aten::binary_cross_entropy", BinaryCrossEntropy);
  r.Add("aten::binary_cross_entropy_backward", BinaryCrossEntropyBackward);
  r.Add("aten::binary_cross_entropy_with_logits", BinaryCrossEntropyWithLogits);
  r.Add("aten::mse_loss", MseLoss);
  r.Add("aten::mse_loss_backward", MseLossBackward);
  r.Add("aten::smooth_l1_loss", SmoothL1);
  r.Add("aten::smooth_l1_loss_backward", SmoothL1Backward);
  r.Add("aten::huber_loss", Huber);
  r.Add("aten::huber_loss_backward", HuberBackward);
  r.Add("aten::multi_margin_loss", MultiMarginLoss, kStaticScalars);
  r.Add("aten::multi_margin_loss_backward", MultiMarginLossBackward, kStaticScalars);
  r.Add("aten::soft_margin_loss", SoftMargin);
  r.Add("aten::soft_margin_loss_backward", SoftMarginBackward);
}

}  // namespace tpu::aten

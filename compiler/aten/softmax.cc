// Softmax, its logarithm, and their gradients.
#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

// x less its maximum along `dim`, so that exp does not overflow.
Tensor Shifted(Tensor x, int64_t dim) { return x - ir::Reduce(ir::ReduceKind::max, x, {dim}, true); }

Tensor Input(AtenCall& c) { return c.as(0, OpMath(c.result_dtype())); }

Result Softmax(AtenCall& c) {  // (x, dim, half_to_float)
  Tensor x = Input(c);
  if (x.rank() == 0) return c.emitter().Constant(x.dtype(), 1);
  int64_t dim = c.dim(1, x.rank());
  Tensor e = ir::Exp(Shifted(x, dim));
  return e * (1 / ir::Sum(e, {dim}, true));  // one division a row
}

Result LogSoftmax(AtenCall& c) {
  Tensor x = Input(c);
  if (x.rank() == 0) return c.emitter().Constant(x.dtype(), 0);
  int64_t dim = c.dim(1, x.rank());
  Tensor shifted = Shifted(x, dim);
  return shifted - ir::Log(ir::Sum(ir::Exp(shifted), {dim}, true));
}

Result SoftmaxBackward(AtenCall& c) {  // (dy, y, dim, input_dtype)
  Tensor dy = c.as(0, c.float_compute()), y = c.as(1, c.float_compute());
  if (y.rank() == 0) return c.emitter().Constant(y.dtype(), 0);
  Tensor weighted = dy * y;
  return weighted - y * ir::Sum(weighted, {c.dim(2, y.rank())}, true);
}

Result LogSoftmaxBackward(AtenCall& c) {
  Tensor dy = c.as(0, c.float_compute()), y = c.as(1, c.float_compute());
  if (y.rank() == 0) return c.emitter().Constant(y.dtype(), 0);
  return dy - ir::Exp(y) * ir::Sum(dy, {c.dim(2, y.rank())}, true);
}

// Rows that are -inf throughout (masked out) give 0.
Result SafeSoftmax(AtenCall& c) {
  Tensor x = Input(c);
  if (x.rank() == 0) return Result::Decline();
  int64_t dim = c.dim(1, x.rank());
  Tensor greatest = ir::Reduce(ir::ReduceKind::max, x, {dim}, true);
  Tensor masked = ir::Eq(greatest, -std::numeric_limits<double>::infinity());
  Tensor e = ir::Exp(x - ir::Select(masked, 0, greatest)), sum = ir::Sum(e, {dim}, true);
  return ir::Select(masked, 0, e * (1 / sum));
}

}  // namespace

void RegisterSoftmax(Registry& r) {
  r.Add("aten::_softmax", Softmax);
  r.Add("aten::_log_softmax", LogSoftmax);
  r.Add("aten::_softmax_backward_data", SoftmaxBackward);
  r.Add("aten::_log_softmax_backward_data", LogSoftmaxBackward);
  r.Add("aten::_safe_softmax", SafeSoftmax);
}

}  // namespace tpu::aten

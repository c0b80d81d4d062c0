// Softmax, its logarithm, and their gradients.
#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

// x less its maximum along `dim`, so that exp does not overflow.
Tensor Shifted(Tensor x, int64_t dim) { return x - ir::Reduce(ir::ReduceKind::max, x, {dim}, true); }

Tensor Of(AtenCall& c, Tensor row) { return ir::Reshape(row, c.result_dims()); }

// A number is a row of one: not always 1, but NaN where it is infinite.
Tensor Input(AtenCall& c) { return AtLeast1(c.as(0, OpMath(c.result_dtype()))); }

Result Softmax(AtenCall& c) {  // (x, dim, half_to_float)
  Tensor x = Input(c);
  int64_t dim = c.dim(1, x.rank());
  Tensor e = ir::Exp(Shifted(x, dim));
  return Of(c, e * (1 / ir::Sum(e, {dim}, true)));  // one division a row
}

Result LogSoftmax(AtenCall& c) {
  Tensor x = Input(c);
  int64_t dim = c.dim(1, x.rank());
  Tensor shifted = Shifted(x, dim);
  return Of(c, shifted - ir::Log(ir::Sum(ir::Exp(shifted), {dim}, true)));
}

Result SoftmaxBackward(AtenCall& c) {  // (dy, y, dim, input_dtype)
  Tensor dy = AtLeast1(In(c, 0)), y = AtLeast1(In(c, 1));
  Tensor weighted = dy * y;
  return Of(c, weighted - y * ir::Sum(weighted, {c.dim(2, y.rank())}, true));
}

Result LogSoftmaxBackward(AtenCall& c) {
  Tensor dy = AtLeast1(In(c, 0)), y = AtLeast1(In(c, 1));
  return Of(c, dy - ir::Exp(y) * ir::Sum(dy, {c.dim(2, y.rank())}, true));
}

// Rows that are -inf throughout (masked out) give 0.
Result SafeSoftmax(AtenCall& c) {
  Tensor x = Input(c);
  int64_t dim = c.dim(1, x.rank());
  Tensor greatest = ir::Reduce(ir::ReduceKind::max, x, {dim}, true);
  Tensor masked = ir::Eq(greatest, -std::numeric_limits<double>::infinity());
  Tensor e = ir::Exp(x - ir::Select(masked, 0, greatest)), sum = ir::Sum(e, {dim}, true);
  return Of(c, ir::Select(masked, 0, e * (1 / sum)));
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

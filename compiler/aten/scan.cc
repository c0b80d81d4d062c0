// Running combinations along a dim.
#include <cmath>
#include <limits>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Lowering Cumulative(ir::ReduceKind kind) {  // (x, dim, dtype)
  return [kind](AtenCall& c) -> Result {
    Tensor x = c.as(0, OpMath(c.result_dtype()));
    return x.rank() == 0 ? x : ir::Scan(kind, x, c.dim(1, x.rank()));
  };
}

// What is the extremum so far, and the last place of it. NaN is one, and none but NaN after it.
Lowering CumulativeExtremum(ir::ReduceKind kind) {  // (x, values, indices, dim)
  return [kind](AtenCall& c) -> Result {
    const Tensor x = c.tensor(0).dtype() == DType::kBool ? c.as(0, DType::kUInt8) : c.tensor(0);
    if (x.rank() == 0) return {x, c.emitter().Integer(DType::kInt64, 0)};
    const int64_t dim = c.dim(3, x.rank());
    const Tensor values = ir::Scan(kind, x, dim), place = c.emitter().Iota(DType::kInt64, x.dims(), dim);
    return {values, ir::Scan(ir::ReduceKind::max, ir::Select(ir::Eq(x, values) | IsNan(x), place, 0), dim)};
  };
}

// By doublings: the greatest of the 1, 2, 4, .. elements up to each, and the sum of the others' exponentials beside it.
Result LogCumSumExp(AtenCall& c) {  // (x, dim)
  Tensor greatest = In(c, 0);
  if (greatest.rank() == 0) return greatest;
  Tensor others = c.emitter().Constant(greatest.dtype(), 0, greatest.dims());
  const int64_t dim = c.dim(1, greatest.rank()), n = greatest.size(dim);
  Shape low(greatest.rank(), 0), high(greatest.rank(), 0);
  for (int64_t& before = low[dim] = 1; before < n; before *= 2) {
    const auto earlier = [&](Tensor x, double outside) {
      return ir::Pad(ir::SliceDim(x, dim, 0, n - before), outside, low, high);
    };
    const Tensor a = greatest, b = earlier(greatest, -kInfinity), of_a = others, of_b = earlier(others, 0);
    const Tensor lesser = ir::Exp(ir::Select(ir::Eq(a, b), 0, -ir::Abs(a - b)));  // equal ones may be infinite
    others = ir::Select(a >= b, of_a + (of_b + 1.0) * lesser, of_b + (of_a + 1.0) * lesser);
    greatest = ir::Max(a, b);
  }
  return greatest + ir::Log1p(others);
}

}  // namespace

void RegisterScan(Registry& r) {
  r.Add("aten::cumsum", Cumulative(ir::ReduceKind::sum));
  r.Add("aten::cumprod", Cumulative(ir::ReduceKind::prod));
  r.Add("aten::_cummax_helper", CumulativeExtremum(ir::ReduceKind::max));
  r.Add("aten::_cummin_helper", CumulativeExtremum(ir::ReduceKind::min));
  r.Add("aten::_logcumsumexp", LogCumSumExp);
}

}  // namespace tpu::aten

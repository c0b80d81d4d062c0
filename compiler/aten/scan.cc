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

// By doublings: to each element what is 1, 2, 4, .. before it. Beside the greatest number, sums round little.
Result LogCumSumExp(AtenCall& c) {  // (x, dim)
  Tensor x = In(c, 0);
  if (x.rank() == 0) return x;
  const int64_t dim = c.dim(1, x.rank()), n = x.size(dim);
  const Tensor greatest = ir::Reduce(ir::ReduceKind::max, ir::Select(IsNan(x), -kInfinity, x), {dim}, true);
  const Tensor shift = ir::Select(IsFinite(greatest), greatest, 0);
  Shape low(x.rank(), 0), high(x.rank(), 0);
  x = x - shift;
  for (int64_t& before = low[dim] = 1; before < n; before *= 2) {
    const Tensor shifted = ir::SliceDim(x, dim, 0, n - before);
    x = LogAddExp(x, ir::Pad(shifted, -kInfinity, low, high), M_E);
  }
  return x + shift;
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

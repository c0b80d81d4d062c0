// Running combinations along a dim.
#include "compiler/aten/families.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

Lowering Cumulative(ir::ReduceKind kind) {  // (x, dim, dtype)
  return [kind](AtenCall& c) -> Result {
    Tensor x = c.as(0, OpMath(c.result_dtype()));
    return x.rank() == 0 ? x : ir::Scan(kind, x, c.dim(1, x.rank()));
  };
}

}  // namespace

void RegisterScan(Registry& r) {
  r.Add("aten::cumsum", Cumulative(ir::ReduceKind::sum));
  r.Add("aten::cumprod", Cumulative(ir::ReduceKind::prod));
}

}  // namespace tpu::aten

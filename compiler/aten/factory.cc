// Tensors from numbers. Numbers are inputs of the fragment, so a changing one makes no new key.
#include <algorithm>

#include "compiler/aten/families.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

// The number argument `i` everywhere.
Lowering Fill(int i) {
  return [i](AtenCall& c) -> Result { return c.as(i, c.result_dtype()); };
}
Lowering Constant(double value) {
  return [value](AtenCall& c) -> Result { return c.emitter().Constant(c.result_dtype(), value, c.result_dims()); };
}

// start + step * i, in i64 or f64.
Lowering Range(int start, int step) {
  return [start, step](AtenCall& c) -> Result {
    DType dtype = IsFloat(c.result_dtype()) ? DType::kFloat64 : DType::kInt64;
    Tensor i = c.emitter().Iota(dtype, c.result_dims(), 0);
    if (step >= 0 && c.has(step)) i = i * c.as(step, dtype);
    return start >= 0 ? i + c.as(start, dtype) : i;
  };
}

Tensor EvenSteps(AtenCall& c, DType dtype) {  // (start, end, steps)
  int64_t steps = c.result_dims()[0];
  Tensor start = c.as(0, dtype), end = c.as(1, dtype);
  if (steps == 1) return start;
  Tensor step = (end - start) / static_cast<double>(steps - 1);
  Tensor i = c.emitter().Iota(dtype, {steps}, 0);
  const int64_t half = steps / 2;
  return ir::Select(i < static_cast<double>(half), start + step * i, end - step * (double(steps - 1) - i));
}
Result Linspace(AtenCall& c) {
  if (!IsFloat(c.result_dtype())) return Result::Decline();
  return EvenSteps(c, OpMath(c.result_dtype()));
}
Result Logspace(AtenCall& c) {  // (start, end, steps, base)
  if (!IsFloat(c.result_dtype())) return Result::Decline();
  const DType dtype = OpMath(c.result_dtype());
  return ir::Pow(c.as(3, dtype), EvenSteps(c, dtype));
}

Result Eye(AtenCall& c) {
  Tensor row = c.emitter().Iota(DType::kInt32, c.result_dims(), 0);
  return ir::Eq(row, c.emitter().Iota(DType::kInt32, c.result_dims(), 1));
}

Lowering TriangleIndices(bool lower) {  // (rows, columns, offset)
  return [lower](AtenCall& c) -> Result {
    constexpr int64_t kMostConstants = 1 << 16;
    if (c.result_dims()[1] > kMostConstants / 2) return Result::Decline();
    int64_t rows = c.integer(0), columns = c.integer(1), offset = c.integer(2);
    Shape at[2];
    for (int64_t i = 0; i < rows; ++i) {
      int64_t begin = lower ? 0 : std::max<int64_t>(0, i + offset),
              end = lower ? std::min(columns, i + offset + 1) : columns;
      for (int64_t j = begin; j < end; ++j) {
        at[0].push_back(i);
        at[1].push_back(j);
      }
    }
    at[0].append(at[1]);
    return ir::Reshape(c.emitter().Dense(DType::kInt64, at[0]), c.result_dims());
  };
}

}  // namespace

void RegisterFactory(Registry& r) {
  r.Add({"aten::fill.Scalar", "aten::fill.Tensor", "aten::full", "aten::full.out", "aten::full_like"}, Fill(1));
  r.Add("aten::new_full", Fill(2));
  r.Add("aten::scalar_tensor", Fill(0));
  r.Add({"aten::zero", "aten::zeros", "aten::zeros_like", "aten::new_zeros"}, Constant(0), kAnyElement);
  r.Add({"aten::ones", "aten::ones_like", "aten::new_ones"}, Constant(1), kComplexToo);
  // Factories with `out` have no functional overload with the same arguments and are recorded as they are.
  r.Add({"aten::arange", "aten::arange.out"}, Range(-1, -1));
  r.Add("aten::arange.start", Range(0, -1));
  r.Add({"aten::arange.start_step", "aten::arange.start_out"}, Range(0, 2));
  r.Add({"aten::linspace", "aten::linspace.out"}, Linspace);
  r.Add({"aten::logspace", "aten::logspace.out"}, Logspace);
  r.Add({"aten::eye", "aten::eye.m", "aten::eye.out", "aten::eye.m_out"}, Eye, kComplexToo);
  r.Add("aten::tril_indices", TriangleIndices(true));
  r.Add("aten::triu_indices", TriangleIndices(false));
}

}  // namespace tpu::aten

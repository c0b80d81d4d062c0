// The _foreach_* family: one formula over lists of tensors.
#include <cmath>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

using UnaryFunction = Tensor (*)(Tensor);
using BinaryFunction = Tensor (*)(Tensor, Tensor);
using Reading = Tensor (*)(Tensor, DType);

// What arithmetic on element k is done in: the op-math type of its own result.
DType Compute(AtenCall& c, size_t k) { return OpMath(c.result_dtype(k)); }

// Argument i as one operand for each of `count` elements: a list, or one tensor or number for all.
llvm::SmallVector<Tensor> Each(AtenCall& c, int i, size_t count) {
  llvm::SmallVector<Tensor> list = c.tensors(i);
  if (list.empty() && c.has(i)) {
    Tensor one = c.tensor(i);
    if (one && one.rank() > 1) return list;
    if (one && one.rank() == 1) {  // a tensor of one number for each element
      for (int64_t k = 0; k < one.size(0); ++k) list.push_back(ir::Reshape(ir::SliceDim(one, 0, k, k + 1), {}));
    } else if (one) {
      list.assign(count, one);
    }
  }
  return list;
}

Lowering Unary(UnaryFunction f, bool rounding = false) {
  return [f, rounding](AtenCall& c) -> Result {
    llvm::SmallVector<Tensor> results;
    for (auto [k, x] : llvm::enumerate(c.tensors(0))) {
      bool identity = rounding && !IsFloat(x.dtype());
      results.push_back(identity ? x : f(ir::Convert(x, Compute(c, k))));
    }
    return results;
  };
}

// What self and the other promote to where that is wider than the result: in place beside floats of a wider type.
DType Common(Tensor self, Tensor other, DType result) {
  const bool promotes = IsFloat(other.dtype()) && other.dtype() != result && (other.rank() > 0 || self.rank() == 0);
  return promotes ? OpMath(result) : result;
}

// (self, other, alpha?) with other a list, a list of numbers, a tensor or a number.
Lowering Binary(BinaryFunction f, bool with_alpha = false, Reading read = Operand) {
  return [f, with_alpha, read](AtenCall& c) -> Result {
    llvm::SmallVector<Tensor> self = c.tensors(0), other = Each(c, 1, self.size()), results;
    if (self.size() != other.size()) return Result::Decline();
    for (size_t k = 0; k < self.size(); ++k) {
      DType type = Common(self[k], other[k], c.result_dtype(k));
      Tensor b = read(other[k], type);
      if (with_alpha && c.has(2)) b = b * Operand(c.tensor(2), type);
      results.push_back(f(Operand(self[k], type), b));
    }
    return results;
  };
}

// (self, a, b, value): self + value * f(a, b)
Lowering Fused(bool divide) {
  return [divide](AtenCall& c) -> Result {
    llvm::SmallVector<Tensor> self = c.tensors(0), a = c.tensors(1), b = c.tensors(2), results;
    llvm::SmallVector<Tensor> value = Each(c, 3, self.size());
    if (a.size() != self.size() || b.size() != self.size() || value.size() != self.size()) return Result::Decline();
    for (size_t k = 0; k < self.size(); ++k) {
      DType dtype = Compute(c, k);
      Tensor scaled = ir::Convert(value[k], dtype) * ir::Convert(a[k], dtype), by = ir::Convert(b[k], dtype);
      results.push_back(ir::Convert(self[k], dtype) + (divide ? scaled / by : scaled * by));
    }
    return results;
  };
}

// (self, ends, weight): weights that are tensors are rounded to half types, numbers keep their digits.
Result LerpLists(AtenCall& c, bool numbers) {
  llvm::SmallVector<Tensor> self = c.tensors(0), end = c.tensors(1), weight = Each(c, 2, self.size()), results;
  if (end.size() != self.size() || weight.size() != self.size()) return Result::Decline();
  for (size_t k = 0; k < self.size(); ++k) {
    DType dtype = Compute(c, k);
    Tensor w = numbers ? ir::Convert(weight[k], dtype) : Operand(weight[k], c.result_dtype(k));
    results.push_back(Lerp(ir::Convert(self[k], dtype), ir::Convert(end[k], dtype), w));
  }
  return results;
}

Result PowScalar(AtenCall& c) {
  llvm::SmallVector<Tensor> results;
  if (!c.is_static(1)) return Result::Decline();
  for (auto [k, x] : llvm::enumerate(c.tensors(0))) {
    DType dtype = Compute(c, k);
    if (!IsPowStatic(dtype, c.real(1))) return Result::Decline();
    results.push_back(PowStatic(ir::Convert(x, dtype), c.real(1), c.result_dtype(k)));
  }
  return results;
}

Result PowLists(AtenCall& c) {
  for (size_t k = 0; k < c.num_results(); ++k) {
    if (!IsFloat(Compute(c, k))) return Result::Decline();
  }
  return Binary(ir::Pow)(c);
}

Result NormOfEach(AtenCall& c) {  // (self, ord, dtype)
  double order = c.real(1, 2);
  if ((c.has(1) && !c.is_static(1)) || (order != 1 && order != 2 && !(std::isinf(order) && order > 0))) {
    return Result::Decline();
  }
  llvm::SmallVector<Tensor> results;
  for (auto [k, t] : llvm::enumerate(c.tensors(0))) {
    Tensor x = ir::Convert(t, Compute(c, k));
    if (order == 2) {
      results.push_back(ir::Sqrt(ir::Sum(x * x, AllDims(x))));
    } else if (order == 1) {
      results.push_back(ir::Sum(ir::Abs(x), AllDims(x)));
    } else {
      results.push_back(ir::Reduce(ir::ReduceKind::max, ir::Abs(x), AllDims(x)));
    }
  }
  return results;
}

void AddBinary(Registry& r, const std::string& name, BinaryFunction f, bool with_alpha = false,
               Reading read = Operand) {
  r.Add("aten::_foreach_" + name + ".List", Binary(f, with_alpha, read));
  for (const char* overload : {".Scalar", ".ScalarList"}) {
    r.Add("aten::_foreach_" + name + overload, Binary(f, false, read));
  }
}

}  // namespace

void RegisterForeach(Registry& r) {
  AddBinary(r, "add", ir::Add, true);
  AddBinary(r, "sub", ir::Sub, true);
  AddBinary(r, "mul", ir::Mul, false, Factor);
  AddBinary(r, "div", ir::Div, false, Factor);
  r.Add("aten::_foreach_add.Tensor", Binary(ir::Add, true));
  r.Add("aten::_foreach_mul.Tensor", Binary(ir::Mul, false, Factor));
  r.Add("aten::_foreach_div.Tensor", Binary(ir::Div, false, Factor));
  AddBinary(r, "maximum", ir::Max);
  AddBinary(r, "minimum", ir::Min);
  AddBinary(r, "clamp_min", ir::Max);
  AddBinary(r, "clamp_max", ir::Min);
  r.Add("aten::_foreach_pow.Scalar", PowScalar, kStaticScalars);
  r.Add("aten::_foreach_pow.List", PowLists);
  r.Add("aten::_foreach_pow.ScalarAndTensor", [](AtenCall& c) -> Result {
    llvm::SmallVector<Tensor> results;
    for (auto [k, x] : llvm::enumerate(c.tensors(1))) {
      DType type = c.result_dtype(k);
      if (!IsFloat(type)) return Result::Decline();
      results.push_back(ir::Pow(Operand(c.tensor(0), type), Operand(x, type)));
    }
    return results;
  });
  for (const char* overload : {".Scalar", ".ScalarList", ".Tensor"}) {
    r.Add(std::string("aten::_foreach_addcmul") + overload, Fused(false));
    r.Add(std::string("aten::_foreach_addcdiv") + overload, Fused(true));
  }
  r.Add("aten::_foreach_lerp.List", [](AtenCall& c) { return LerpLists(c, /*numbers=*/false); });
  r.Add({"aten::_foreach_lerp.Scalar", "aten::_foreach_lerp.ScalarList"},
        [](AtenCall& c) { return LerpLists(c, /*numbers=*/true); });
  r.Add("aten::_foreach_norm.Scalar", NormOfEach, kStaticScalars);
  r.Add("aten::_foreach_max", [](AtenCall& c) -> Result {
    llvm::SmallVector<Tensor> results;
    for (Tensor x : c.tensors(0)) results.push_back(ir::Reduce(ir::ReduceKind::max, x, AllDims(x)));
    return results;
  });
  r.Add("aten::_foreach_copy", [](AtenCall& c) -> Result { return c.tensors(1); });
  r.Add("aten::_foreach_zero", [](AtenCall& c) -> Result {
    llvm::SmallVector<Tensor> results;
    for (Tensor x : c.tensors(0)) results.push_back(c.emitter().Constant(x.dtype(), 0, x.dims()));
    return results;
  });

  const std::pair<const char*, UnaryFunction> unary[] = {{"neg", ir::Neg},
                                                         {"abs", ir::Abs},
                                                         {"sign", ir::Sign},
                                                         {"exp", ir::Exp},
                                                         {"expm1", ir::Expm1},
                                                         {"log", ir::Log},
                                                         {"log1p", ir::Log1p},
                                                         {"log2", ir::Log2},
                                                         {"log10", ir::Log10},
                                                         {"sqrt", ir::Sqrt},
                                                         {"rsqrt", ir::Rsqrt},
                                                         {"sin", ir::Sin},
                                                         {"cos", ir::Cos},
                                                         {"tan", ir::Tan},
                                                         {"asin", ir::Asin},
                                                         {"acos", ir::Acos},
                                                         {"atan", ir::Atan},
                                                         {"sinh", ir::Sinh},
                                                         {"cosh", ir::Cosh},
                                                         {"tanh", ir::Tanh},
                                                         {"erf", ir::Erf},
                                                         {"sigmoid", ir::Logistic},
                                                         {"reciprocal", [](Tensor x) { return 1.0 / x; }}};
  for (auto [name, f] : unary) r.Add(std::string("aten::_foreach_") + name, Unary(f));
  const std::pair<const char*, UnaryFunction> rounding[] = {
      {"floor", ir::Floor}, {"ceil", ir::Ceil}, {"round", ir::RoundEven}, {"trunc", ir::Trunc}};
  for (auto [name, f] : rounding) r.Add(std::string("aten::_foreach_") + name, Unary(f, true));
}

}  // namespace tpu::aten

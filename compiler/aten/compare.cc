// Comparisons, logic, bits and selection.
#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

using BinaryFunction = Tensor (*)(Tensor, Tensor);

Lowering Binary(BinaryFunction f) {
  return [f](AtenCall& c) -> Result { return f(c.x(0), c.x(1)); };
}
// On truth values.
Lowering Logical(BinaryFunction f) {
  return [f](AtenCall& c) -> Result { return f(c.as(0, DType::kBool), c.as(1, DType::kBool)); };
}
// Of floats: no integer is infinite, or no number.
Lowering FloatTest(Tensor (*f)(Tensor)) {
  return [f](AtenCall& c) -> Result {
    Tensor x = c.tensor(0);
    if (!IsFloat(x.dtype())) return c.emitter().Constant(DType::kBool, 0, x.dims());
    return f(ir::Convert(x, OpMath(x.dtype())));
  };
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void AddBoth(Registry& r, const std::string& name, const Lowering& lowering) {
  r.Add(name + ".Tensor", lowering);
  r.Add(name + ".Scalar", lowering);
}

// isin(elements, test_elements, assume_unique, invert) by comparing all pairs; the host's kernel sorts where the latter
// are many.
Result IsIn(AtenCall& c) {
  constexpr int64_t kMostOnHost = 128, kMost = 1 << 14;
  Tensor x = c.x(0), among = c.x(1);
  if (among.elements() > (c.host_kernels() ? kMostOnHost : kMost)) return Result::Decline();
  const int64_t last = x.rank();
  Tensor equal = ir::Eq(ir::Unsqueeze(x, last), Flat(among));
  Tensor found = ir::Reduce(ir::ReduceKind::any, equal, {last});
  return c.boolean(3) ? ir::Not(found) : found;
}

}  // namespace

void RegisterCompare(Registry& r) {
  AddBoth(r, "aten::eq", Binary(ir::Eq));
  AddBoth(r, "aten::ne", Binary(ir::Ne));
  AddBoth(r, "aten::lt", Binary(ir::Lt));
  AddBoth(r, "aten::le", Binary(ir::Le));
  AddBoth(r, "aten::gt", Binary(ir::Gt));
  AddBoth(r, "aten::ge", Binary(ir::Ge));

  r.Add("aten::logical_and", Logical(ir::And));
  r.Add("aten::logical_or", Logical(ir::Or));
  r.Add("aten::logical_xor", Logical(ir::Xor));
  r.Add("aten::logical_not", [](AtenCall& c) -> Result { return ir::Not(c.as(0, DType::kBool)); });

  for (const std::string suffix : {".Tensor", ".Scalar", ".Scalar_Tensor"}) {
    r.Add("aten::bitwise_and" + suffix, Binary(ir::And));
    r.Add("aten::bitwise_or" + suffix, Binary(ir::Or));
    r.Add("aten::bitwise_xor" + suffix, Binary(ir::Xor));
  }
  for (const std::string suffix : {".Tensor", ".Tensor_Scalar", ".Scalar_Tensor"}) {
    r.Add("aten::bitwise_left_shift" + suffix, Binary(ir::Shl));
    r.Add("aten::bitwise_right_shift" + suffix, Binary(ir::Shr));
  }
  for (const std::string in_place : {"", "i"}) {
    AddBoth(r, "aten::__" + in_place + "lshift__", Binary(ir::Shl));
    AddBoth(r, "aten::__" + in_place + "rshift__", Binary(ir::Shr));
  }
  r.Add("aten::bitwise_not", [](AtenCall& c) -> Result { return ir::Not(c.x(0)); });

  r.Add("aten::isnan", FloatTest(IsNan));
  r.Add("aten::isinf", FloatTest([](Tensor x) { return ir::Eq(ir::Abs(x), kInfinity); }));
  r.Add("aten::isposinf", FloatTest([](Tensor x) { return ir::Eq(x, kInfinity); }));
  r.Add("aten::isneginf", FloatTest([](Tensor x) { return ir::Eq(x, -kInfinity); }));
  r.Add("aten::signbit", [](AtenCall& c) -> Result { return SignBit(c.tensor(0)); });

  r.Add("aten::where.self", [](AtenCall& c) -> Result {
    DType dtype = c.result_dtype();
    return ir::Select(c.as(0, DType::kBool), c.as(1, dtype), c.as(2, dtype));
  });
  r.Add({"aten::masked_fill.Scalar", "aten::masked_fill.Tensor"}, [](AtenCall& c) -> Result {
    return ir::Select(c.as(1, DType::kBool), c.as(2, c.result_dtype()), c.as(0, c.result_dtype()));
  });
  r.Add({"aten::isin.Tensor_Tensor", "aten::isin.Tensor_Scalar", "aten::isin.Scalar_Tensor"}, IsIn);
}

}  // namespace tpu::aten

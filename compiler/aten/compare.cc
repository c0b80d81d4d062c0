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
// Of floats; integers are always finite.
Lowering FloatTest(Tensor (*f)(Tensor), bool of_integers) {
  return [f, of_integers](AtenCall& c) -> Result {
    Tensor x = c.tensor(0);
    if (!IsFloat(x.dtype())) return c.emitter().Constant(DType::kBool, of_integers, x.dims());
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
  Tensor equal = ir::Eq(ir::Unsqueeze(x, last), ir::Reshape(among, {among.elements()}));
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

  for (const char* suffix : {".Tensor", ".Scalar", ".Scalar_Tensor"}) {
    r.Add(std::string("aten::bitwise_and") + suffix, Binary(ir::And));
    r.Add(std::string("aten::bitwise_or") + suffix, Binary(ir::Or));
    r.Add(std::string("aten::bitwise_xor") + suffix, Binary(ir::Xor));
    r.Add(std::string("aten::__and__") + suffix, Binary(ir::And));
    r.Add(std::string("aten::__or__") + suffix, Binary(ir::Or));
    r.Add(std::string("aten::__xor__") + suffix, Binary(ir::Xor));
    r.Add(std::string("aten::__lshift__") + suffix, Binary(ir::Shl));
    r.Add(std::string("aten::__ilshift__") + suffix, Binary(ir::Shl));
    r.Add(std::string("aten::__irshift__") + suffix, Binary(ir::Shr));
    r.Add(std::string("aten::__rshift__") + suffix, Binary(ir::Shr));
    r.Add(std::string("aten::bitwise_right_shift") + suffix, Binary(ir::Shr));
  }
  for (const char* name : {"aten::bitwise_left_shift.Tensor", "aten::bitwise_left_shift.Tensor_Scalar",
                           "aten::bitwise_left_shift.Scalar_Tensor"}) {
    r.Add(name, Binary(ir::Shl));
  }
  r.Add("aten::bitwise_right_shift.Tensor_Scalar", Binary(ir::Shr));
  r.Add("aten::bitwise_not", [](AtenCall& c) -> Result { return ir::Not(c.x(0)); });

  r.Add("aten::isnan", FloatTest(IsNan, false));
  r.Add("aten::isfinite", FloatTest(IsFinite, true));
  r.Add("aten::isinf", FloatTest([](Tensor x) { return ir::Eq(ir::Abs(x), kInfinity); }, false));
  r.Add("aten::isposinf", FloatTest([](Tensor x) { return ir::Eq(x, kInfinity); }, false));
  r.Add("aten::isneginf", FloatTest([](Tensor x) { return ir::Eq(x, -kInfinity); }, false));
  r.Add("aten::signbit", [](AtenCall& c) -> Result { return SignBit(c.tensor(0)); });

  r.Add({"aten::where.self", "aten::where.ScalarOther", "aten::where.ScalarSelf", "aten::where.Scalar"},
        [](AtenCall& c) -> Result {
          DType dtype = c.result_dtype();
          return ir::Select(c.as(0, DType::kBool), c.as(1, dtype), c.as(2, dtype));
        });
  r.Add({"aten::masked_fill.Scalar", "aten::masked_fill.Tensor"}, [](AtenCall& c) -> Result {
    return ir::Select(c.as(1, DType::kBool), c.as(2, c.result_dtype()), c.as(0, c.result_dtype()));
  });
  r.Add({"aten::isin.Tensor_Tensor", "aten::isin.Tensor_Scalar", "aten::isin.Scalar_Tensor"}, IsIn);
  r.Add("aten::isclose", [](AtenCall& c) -> Result {  // (a, b, rtol, atol, equal_nan)
    Tensor a = c.as(0, c.float_compute()), b = c.as(1, c.float_compute());
    Tensor bound = c.as(3, a.dtype()) + ir::Abs(c.as(2, a.dtype()) * b);
    Tensor apart = ir::Abs(a - b);
    Tensor close = ir::Eq(a, b) | (IsFinite(apart) & (apart <= bound));
    return c.boolean(4) ? close | (IsNan(a) & IsNan(b)) : close;
  });
}

}  // namespace tpu::aten

// Elementwise primitives. Most have an operation of their own in StableHLO: the table; the others are a few lines each.
#include "compiler/stablehlo/emit.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/ADT/TypeSwitch.h"

namespace tpu::stablehlo {
namespace {

// By the primitive's name; empty: no operation of its own.
llvm::StringRef OwnOperation(llvm::StringRef primitive) {
  return llvm::StringSwitch<llvm::StringRef>(primitive)
      .Cases({"add", "and", "or", "xor", "not", "abs", "sqrt", "rsqrt", "tan"}, primitive)
      .Cases({"tanh", "logistic", "floor", "ceil", "atan2", "is_finite", "log", "select", "real", "complex"}, primitive)
      .Case("imaginary", "imag")
      .Case("neg", "negate")
      .Case("exp", "exponential")
      .Case("expm1", "exponential_minus_one")
      .Case("log1p", "log_plus_one")
      .Case("sin", "sine")
      .Case("cos", "cosine")
      .Case("round_even", "round_nearest_even")
      .Case("sub", "subtract")
      .Case("mul", "multiply")
      .Case("div", "divide")
      .Case("rem", "remainder")
      .Case("pow", "power")
      .Case("max", "maximum")
      .Case("min", "minimum")
      .Case("shl", "shift_left")
      .Default("");
}

const char* Direction(ir::CompareKind kind) {
  constexpr const char* kNames[] = {"EQ", "NE", "LT", "LE", "GT", "GE"};
  return kNames[static_cast<int>(kind)];
}

// Complex to real drops the imaginary part; a number is not 0 when either part is not.
Val ConvertTo(Writer& w, Val x, mlir::Type element) {
  auto from = mlir::dyn_cast<mlir::ComplexType>(x.element());
  if (from && !mlir::isa<mlir::ComplexType>(element)) {
    if (element.isInteger(1)) return w.Compare("NE", x, w.Splat(x.type, 0));
    return w.Convert(w.Op("real", {x}, WithElement(x.type, from.getElementType())), element);
  }
  auto to = mlir::dyn_cast<mlir::ComplexType>(element);
  if (to && !from) {
    Val real = w.Convert(x, to.getElementType());
    return w.Op("complex", {real, w.Splat(real.type, 0)}, WithElement(x.type, element));
  }
  if (element.isInteger(1)) return w.Compare("NE", x, w.Splat(x.type, 0));
  return w.Convert(x, element);
}

}  // namespace

bool EmitElementwise(Emission& e, mlir::Operation* op) {
  if (!op->hasTrait<mlir::OpTrait::Elementwise>()) return false;
  llvm::SmallVector<Val> operands;
  for (mlir::Value v : op->getOperands()) operands.push_back(e.Of(v));
  mlir::Value result = op->getResult(0);
  const mlir::RankedTensorType type = Stored(ir::TensorTypeOf(result));
  return llvm::TypeSwitch<mlir::Operation*, bool>(op)
      .Case<ir::CompareOp>([&](auto o) {
        e.Set(result, e.w.Compare(Direction(o.getKind()), operands[0], operands[1]));
        return true;
      })
      .Case<ir::RequireOp>([&](auto) {
        e.Set(result, operands[0]);
        return true;
      })
      .Case<ir::ConvertOp>([&](auto) {
        e.Set(result, ConvertTo(e.w, operands[0], type.getElementType()));
        return true;
      })
      .Case<ir::ShrOp>([&](auto) {
        const char* name = operands[0].is_unsigned() ? "shift_right_logical" : "shift_right_arithmetic";
        e.Set(result, e.w.Op(name, operands, type));
        return true;
      })
      .Case<ir::AbsOp>([&](auto) {
        e.Set(result, operands[0].is_unsigned() ? operands[0] : e.w.Op("abs", operands, type));
        return true;
      })
      .Default([&](mlir::Operation* o) {
        const llvm::StringRef name = OwnOperation(o->getName().stripDialect());
        if (name.empty()) return false;
        e.Set(result, e.w.Op(name.str(), operands, type));
        return true;
      });
}

}  // namespace tpu::stablehlo

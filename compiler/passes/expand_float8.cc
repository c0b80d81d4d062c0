// Pass expand-float8: conversions from and to float8 formats become arithmetic on their bits.
//
// What is rounded goes to the nearest, of two to the even one. Too large is the largest where there is no infinity.
#include "compiler/ir/builder.h"
#include "compiler/ir/dialect.h"
#include "compiler/passes/passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace tpu {
namespace {

using ir::Tensor;

Tensor Bits(Tensor like, int64_t v) { return like.emitter().Integer(like.dtype(), v, like.dims()); }

// Each is an f16's upper byte, but for an exponent with fewer bits and another bias.
Tensor Decoded(Tensor x) {
  const Tensor bits = ir::Convert(ir::Bitcast(x, DType::kInt8), DType::kInt16);
  const auto number = [](Tensor half) { return ir::Convert(ir::Bitcast(half, DType::kFloat16), DType::kFloat32); };
  if (x.dtype() == DType::kFloat8E5M2) return number(ir::Shl(bits, Bits(bits, 8)));
  const Tensor half = ir::And(ir::Shl(bits, Bits(bits, 7)), Bits(bits, ~0x4000));  // the sign was there twice
  const Tensor is_nan = ir::Eq(ir::And(bits, Bits(bits, 0x7f)), Bits(bits, 0x7f));
  return number(ir::Select(is_nan, ir::Or(half, Bits(bits, 0x7e00)), half)) * 256;
}

struct Format {
  int mantissa, bias;
  int64_t too_large;  // what stands for it
};

Tensor Encoded(Tensor x, DType dtype) {
  const Format f = dtype == DType::kFloat8E4M3FN ? Format{3, 7, 0x7e} : Format{2, 15, 0x7c};
  const Tensor bits = ir::Bitcast(x, DType::kInt32), size = ir::And(bits, Bits(bits, 0x7fffffff));
  const auto number = [&](int64_t v) { return Bits(bits, v); };
  const int cut = 23 - f.mantissa;
  // A number as large as this has as its last bit the format's least.
  const int64_t large = int64_t{128 - f.bias + cut} << 23, least_normal = int64_t{128 - f.bias} << 23;
  const Tensor shifted = ir::Abs(x) + ir::Bitcast(number(large), DType::kFloat32);
  const Tensor small = ir::Bitcast(shifted, DType::kInt32) - number(large);
  const Tensor odd = ir::And(ir::Shr(size, number(cut)), number(1));
  const int64_t half = (int64_t{1} << (cut - 1)) - 1, rebias = int64_t{f.bias - 127} << 23;
  const Tensor normal = ir::Shr(size + odd + number(rebias + half), number(cut));
  Tensor result = ir::Select(size < number(least_normal), small, normal);
  result = ir::Select(size > number(0xff << 23), number(0x7f), ir::Min(result, number(f.too_large)));
  result = ir::Or(result, ir::And(ir::Shr(bits, number(24)), number(0x80)));
  return ir::Bitcast(ir::Convert(result, DType::kUInt8), dtype);
}

struct ExpandFloat8 : mlir::PassWrapper<ExpandFloat8, mlir::OperationPass<mlir::func::FuncOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(ExpandFloat8)
  llvm::StringRef getArgument() const override { return "expand-float8"; }
  llvm::StringRef getDescription() const override { return "Conversions of float8 as arithmetic on bits"; }
  void runOnOperation() override {
    llvm::SmallVector<ir::ConvertOp> conversions;
    getOperation().walk([&](ir::ConvertOp op) { conversions.push_back(op); });
    for (ir::ConvertOp op : conversions) {
      mlir::OpBuilder builder(op);
      ir::Emitter e(builder, op.getLoc());
      const Tensor x = e.Wrap(op.getX());
      const DType dtype = e.Wrap(op.getResult()).dtype();
      if (!IsOpaque(x.dtype()) && !IsOpaque(dtype)) continue;
      const Tensor value = IsOpaque(x.dtype()) ? Decoded(x) : ir::Convert(x, DType::kFloat32);
      const Tensor result = IsOpaque(dtype) ? Encoded(value, dtype) : ir::Convert(value, dtype);
      op.getResult().replaceAllUsesWith(result.value());
      op.erase();
    }
  }
};

}  // namespace

std::unique_ptr<mlir::Pass> CreateExpandFloat8Pass() { return std::make_unique<ExpandFloat8>(); }

}  // namespace tpu

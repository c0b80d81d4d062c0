#include "compiler/ir/types.h"

#include <algorithm>

#include "llvm/Support/ErrorHandling.h"

namespace tpu::ir {

mlir::Type ElementType(mlir::MLIRContext* context, DType dtype) {
  mlir::Builder b(context);
  switch (dtype) {
    case DType::kBool:
      return b.getI1Type();
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
      return b.getIntegerType(8 * SizeOf(dtype));
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
      return b.getIntegerType(8 * SizeOf(dtype), /*isSigned=*/false);
    case DType::kFloat16:
      return b.getF16Type();
    case DType::kBFloat16:
      return b.getBF16Type();
    case DType::kFloat32:
      return b.getF32Type();
    case DType::kFloat64:
      return b.getF64Type();
    case DType::kComplex64:
      return mlir::ComplexType::get(b.getF32Type());
    case DType::kComplex128:
      return mlir::ComplexType::get(b.getF64Type());
    case DType::kOpaque8:
    case DType::kOpaque16:
    case DType::kOpaque32:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2FNUZ:
    case DType::kFloat8E8M0FNU:
      return OpaqueType::get(context, {NameOf(dtype).data(), NameOf(dtype).size()});
  }
  llvm_unreachable("no such dtype");
}

DType DTypeOf(mlir::Type t) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (ElementType(t.getContext(), static_cast<DType>(i)) == t) return static_cast<DType>(i);
  }
  llvm_unreachable("not an element type of the dialect");
}

mlir::RankedTensorType ToMlir(mlir::MLIRContext* context, const TensorType& type) {
  return mlir::RankedTensorType::get({type.dims.data(), type.dims.size()}, ElementType(context, type.dtype));
}

TensorType FromMlir(mlir::RankedTensorType type) {
  return {DTypeOf(type.getElementType()), Dims(type.getShape().begin(), type.getShape().end())};
}

int64_t BytesOf(mlir::Type element_type) { return SizeOf(DTypeOf(element_type)); }

int64_t SliceSize(int64_t start, int64_t limit, int64_t stride) {
  return std::max<int64_t>((limit - start + stride - 1) / std::max<int64_t>(stride, 1), 0);
}

int64_t PadSize(int64_t size, int64_t low, int64_t high, int64_t interior) {
  return std::max<int64_t>(low + size + std::max<int64_t>(size - 1, 0) * interior + high, 0);
}

int64_t WindowSize(int64_t size, int64_t low, int64_t high, int64_t window, int64_t stride, int64_t dilation) {
  const int64_t room = low + size + high - (dilation * (window - 1) + 1);
  return room < 0 ? 0 : room / std::max<int64_t>(stride, 1) + 1;
}

mlir::SmallVector<int64_t> DotShape(mlir::RankedTensorType lhs, mlir::RankedTensorType rhs,
                                    mlir::ArrayRef<int64_t> lhs_batch, mlir::ArrayRef<int64_t> rhs_batch,
                                    mlir::ArrayRef<int64_t> lhs_contract, mlir::ArrayRef<int64_t> rhs_contract) {
  mlir::SmallVector<int64_t> shape;
  for (int64_t d : lhs_batch) shape.push_back(lhs.getDimSize(d));
  auto free = [&](mlir::RankedTensorType t, mlir::ArrayRef<int64_t> batch, mlir::ArrayRef<int64_t> contract) {
    for (int64_t d = 0; d < t.getRank(); ++d) {
      if (!llvm::is_contained(batch, d) && !llvm::is_contained(contract, d)) shape.push_back(t.getDimSize(d));
    }
  };
  free(lhs, lhs_batch, lhs_contract);
  free(rhs, rhs_batch, rhs_contract);
  return shape;
}

mlir::SmallVector<int64_t> ConvShape(mlir::RankedTensorType lhs, mlir::RankedTensorType rhs,
                                     mlir::ArrayRef<int64_t> strides, mlir::ArrayRef<int64_t> low,
                                     mlir::ArrayRef<int64_t> high, mlir::ArrayRef<int64_t> base_dilation,
                                     mlir::ArrayRef<int64_t> dilation, int64_t batch_groups, bool swapped) {
  mlir::SmallVector<int64_t> shape{lhs.getDimSize(swapped) / batch_groups, rhs.getDimSize(swapped)};
  if (swapped) std::swap(shape[0], shape[1]);
  for (size_t d = 0; d < strides.size(); ++d) {
    const int64_t spread = (lhs.getDimSize(d + 2) - 1) * base_dilation[d] + 1;
    shape.push_back(WindowSize(spread, low[d], high[d], rhs.getDimSize(d + 2), strides[d], dilation[d]));
  }
  return shape;
}

}  // namespace tpu::ir

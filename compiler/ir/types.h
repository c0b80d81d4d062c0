// Between device element types (runtime/dtype.h) and MLIR types, and shape arithmetic shared by builder, verifier and
// passes.
#pragma once

#include "compiler/ir/dialect.h"
#include "runtime/tensor_type.h"

namespace tpu::ir {

mlir::Type ElementType(mlir::MLIRContext* context, DType dtype);
// The inverse; every element type of the dialect has one.
DType DTypeOf(mlir::Type element_type);
mlir::RankedTensorType ToMlir(mlir::MLIRContext* context, const TensorType& type);
TensorType FromMlir(mlir::RankedTensorType type);

inline mlir::RankedTensorType TensorTypeOf(mlir::Value v) { return mlir::cast<mlir::RankedTensorType>(v.getType()); }
inline mlir::Type ElementOf(mlir::Value v) { return TensorTypeOf(v).getElementType(); }
inline mlir::ArrayRef<int64_t> ShapeOf(mlir::Value v) { return TensorTypeOf(v).getShape(); }
inline int64_t CountOf(mlir::Value v) { return TensorTypeOf(v).getNumElements(); }
// Bytes of a stored element.
int64_t BytesOf(mlir::Type element_type);

// How many elements there are along a dim of tpu.slice, tpu.pad, and of what goes over windows; 0 for numbers that
// there is no such value of.
int64_t SliceSize(int64_t start, int64_t limit, int64_t stride);
int64_t PadSize(int64_t size, int64_t low, int64_t high, int64_t interior);
int64_t WindowSize(int64_t size, int64_t low, int64_t high, int64_t window, int64_t stride, int64_t dilation);

mlir::SmallVector<int64_t> DotShape(mlir::RankedTensorType lhs, mlir::RankedTensorType rhs,
                                    mlir::ArrayRef<int64_t> lhs_batch, mlir::ArrayRef<int64_t> rhs_batch,
                                    mlir::ArrayRef<int64_t> lhs_contract, mlir::ArrayRef<int64_t> rhs_contract);

// Of tpu.conv; sizes below 1 where a window does not fit.
mlir::SmallVector<int64_t> ConvShape(mlir::RankedTensorType lhs, mlir::RankedTensorType rhs,
                                     mlir::ArrayRef<int64_t> strides, mlir::ArrayRef<int64_t> low,
                                     mlir::ArrayRef<int64_t> high, mlir::ArrayRef<int64_t> base_dilation,
                                     mlir::ArrayRef<int64_t> dilation, int64_t batch_groups, bool swapped);

}  // namespace tpu::ir

#include "compiler/host/gemm.h"

#include <algorithm>

#include "compiler/ir/types.h"

namespace tpu::host {
namespace {

struct Matrix {
  mlir::Value source;
  int64_t offset = 0;
  llvm::SmallVector<int64_t> batch_strides;
  bool transposed = false;
  int64_t leading = 0;
};

// The last two dims as a row-major matrix, or its transpose, of the source.
std::optional<Matrix> AsMatrix(const StridedSource& s, llvm::ArrayRef<int64_t> shape) {
  size_t rank = shape.size();
  int64_t rows = shape[rank - 2], columns = shape[rank - 1];
  int64_t row_stride = s.strides[rank - 2], column_stride = s.strides[rank - 1];
  Matrix m;
  m.source = s.source;
  m.offset = s.offset;
  m.batch_strides.assign(s.strides.begin(), s.strides.end() - 2);
  if (llvm::any_of(s.strides, [](int64_t stride) { return stride < 0; })) return std::nullopt;
  if ((columns == 1 || column_stride == 1) && (rows == 1 || row_stride >= columns)) {
    m.leading = rows == 1 ? std::max<int64_t>(columns, 1) : row_stride;
    return m;
  }
  if ((rows == 1 || row_stride == 1) && (columns == 1 || column_stride >= rows)) {
    m.transposed = true;
    m.leading = columns == 1 ? std::max<int64_t>(rows, 1) : column_stride;
    return m;
  }
  return std::nullopt;
}

Matrix MatrixOf(mlir::Value operand) {
  auto shape = ir::TensorTypeOf(operand).getShape();
  if (auto source = FindStridedSource(operand)) {
    if (auto matrix = AsMatrix(*source, shape)) return *matrix;
  }
  StridedSource self;
  self.source = operand;
  self.strides.assign(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) self.strides[d - 1] = self.strides[d] * shape[d];
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) self.strides[d] = 0;
  }
  return AsMatrix(self, shape).value();
}

}  // namespace

bool DotReadsInPlace(ir::DotOp dot, mlir::Value operand) {
  auto source = FindStridedSource(operand);
  return source && AsMatrix(*source, ir::TensorTypeOf(operand).getShape());
}

GemmSource PlanGemm(ir::DotOp dot) {
  Matrix a = MatrixOf(dot.getLhs()), b = MatrixOf(dot.getRhs());
  auto lhs = ir::TensorTypeOf(dot.getLhs()), rhs = ir::TensorTypeOf(dot.getRhs());
  auto out = ir::TensorTypeOf(dot.getResult());
  GemmSource plan;
  plan.a = a.source;
  plan.b = b.source;
  GemmStep& step = plan.step;
  step.dtype = ir::DTypeOf(lhs.getElementType());
  step.out_dtype = ir::DTypeOf(out.getElementType());
  const int64_t rank = lhs.getRank();
  const bool turned_a = dot.getLhsContract()[0] == rank - 2, turned_b = dot.getRhsContract()[0] == rank - 1;
  step.m = lhs.getDimSize(turned_a ? rank - 1 : rank - 2);
  step.k = lhs.getDimSize(turned_a ? rank - 2 : rank - 1);
  step.n = rhs.getDimSize(turned_b ? rank - 2 : rank - 1);
  step.triangle = static_cast<Triangle>(dot.getTriangle());
  step.trans_a = a.transposed != turned_a;
  step.trans_b = b.transposed != turned_b;
  step.lda = a.leading;
  step.ldb = b.leading;
  step.ldc = std::max<int64_t>(step.n, 1);
  step.offset_a = a.offset;
  step.offset_b = b.offset;
  // Batch dims that one stride can walk are one.
  int64_t stride_c = step.m * step.n;
  for (int64_t d = rank - 2; d-- > 0;) {
    int64_t size = lhs.getDimSize(d);
    if (size == 1) continue;
    int64_t sa = a.batch_strides[d], sb = b.batch_strides[d];
    if (!step.batch.empty() && sa == step.stride_a.back() * step.batch.back() &&
        sb == step.stride_b.back() * step.batch.back()) {
      step.batch.back() *= size;
    } else {
      step.batch.push_back(size);
      step.stride_a.push_back(sa);
      step.stride_b.push_back(sb);
      step.stride_c.push_back(stride_c);
    }
    stride_c *= size;
  }
  // One right side for all of the innermost dim: it is more rows.
  if (!step.batch.empty() && step.stride_b[0] == 0 && !step.trans_a && step.triangle == Triangle::kNone &&
      step.stride_a[0] == step.m * step.lda) {
    step.m *= step.batch[0];
    for (std::vector<int64_t>* list : {&step.batch, &step.stride_a, &step.stride_b, &step.stride_c}) {
      list->erase(list->begin());
    }
  }
  std::reverse(step.batch.begin(), step.batch.end());
  std::reverse(step.stride_a.begin(), step.stride_a.end());
  std::reverse(step.stride_b.begin(), step.stride_b.end());
  std::reverse(step.stride_c.begin(), step.stride_c.end());
  return plan;
}

}  // namespace tpu::host

// Result types of the ops that infer them. Attributes may be wrong here (the verifier runs later): nothing may be
// indexed before it is checked.
#include "compiler/ir/dialect.h"
#include "compiler/ir/types.h"

namespace tpu::ir {
namespace {

using mlir::ArrayRef;
using mlir::cast;
using mlir::failure;
using mlir::Location;
using mlir::LogicalResult;
using mlir::MLIRContext;
using mlir::RankedTensorType;
using mlir::SmallVector;
using mlir::SmallVectorImpl;
using mlir::success;
using mlir::Type;

using Shape = SmallVector<int64_t>;

RankedTensorType TypeOf(mlir::Value v) { return cast<RankedTensorType>(v.getType()); }
RankedTensorType WithShape(mlir::Value v, ArrayRef<int64_t> shape) {
  return RankedTensorType::get(shape, TypeOf(v).getElementType());
}
RankedTensorType IndexType(MLIRContext* context, ArrayRef<int64_t> shape) {
  return RankedTensorType::get(shape, mlir::IntegerType::get(context, 64));
}
RankedTensorType PartOf(mlir::Value v) {  // of complex numbers
  return RankedTensorType::get(TypeOf(v).getShape(),
                               cast<mlir::ComplexType>(TypeOf(v).getElementType()).getElementType());
}
bool Within(int64_t dim, mlir::Value v) { return dim >= 0 && dim < TypeOf(v).getRank(); }

LogicalResult Fail(std::optional<Location> loc, const char* text) { return mlir::emitOptionalError(loc, text); }

template <typename Adaptor>
LogicalResult WindowShape(std::optional<Location> loc, Adaptor a, Shape& shape) {
  auto type = TypeOf(a.getX());
  size_t n = a.getWindow().size();
  if (n > size_t(type.getRank()) || a.getStrides().size() != n || a.getDilation().size() != n ||
      a.getPaddingLow().size() != n || a.getPaddingHigh().size() != n) {
    return Fail(loc, "C1: window attributes must have equal lengths, at most the rank");
  }
  shape.assign(type.getShape().begin(), type.getShape().end());
  for (size_t i = 0; i < n; ++i) {
    if (a.getWindow()[i] < 1 || a.getStrides()[i] < 1 || a.getDilation()[i] < 1 || a.getPaddingLow()[i] < 0 ||
        a.getPaddingHigh()[i] < 0) {
      return Fail(loc, "C2: window, strides, dilation must be >= 1 and paddings >= 0");
    }
    int64_t& size = shape[shape.size() - n + i];
    size = WindowSize(size, a.getPaddingLow()[i], a.getPaddingHigh()[i], a.getWindow()[i], a.getStrides()[i],
                      a.getDilation()[i]);
    if (size == 0) return Fail(loc, "C2: the dilated window must fit in the padded operand");
  }
  return success();
}

}  // namespace

#define INFER(op)                                                                                  \
  LogicalResult op::inferReturnTypes(MLIRContext* context, std::optional<Location> loc, Adaptor a, \
                                     SmallVectorImpl<Type>& results)

INFER(CompareOp) {
  results.push_back(RankedTensorType::get(TypeOf(a.getLhs()).getShape(), mlir::IntegerType::get(context, 1)));
  return success();
}

INFER(RealOp) {
  results.push_back(PartOf(a.getX()));
  return success();
}

INFER(ImaginaryOp) {
  results.push_back(PartOf(a.getX()));
  return success();
}

INFER(ComplexOp) {
  auto part = TypeOf(a.getReal());
  results.push_back(RankedTensorType::get(part.getShape(), mlir::ComplexType::get(part.getElementType())));
  return success();
}

INFER(ConstantOp) {
  results.push_back(a.getValue().getType());
  return success();
}

INFER(TransposeOp) {
  auto type = TypeOf(a.getX());
  SmallVector<bool> seen(type.getRank(), false);
  if (a.getPermutation().size() != seen.size()) return Fail(loc, "C1: permutation must name every dim once");
  Shape shape;
  for (int64_t d : a.getPermutation()) {
    if (!Within(d, a.getX()) || seen[d]) return Fail(loc, "C1: permutation must name every dim once");
    seen[d] = true;
    shape.push_back(type.getDimSize(d));
  }
  results.push_back(WithShape(a.getX(), shape));
  return success();
}

INFER(SliceOp) {
  auto type = TypeOf(a.getX());
  size_t rank = type.getRank();
  if (a.getStart().size() != rank || a.getLimit().size() != rank || a.getStride().size() != rank) {
    return Fail(loc, "C1: one start, limit and stride for each dim");
  }
  Shape shape;
  for (size_t i = 0; i < rank; ++i) {
    int64_t start = a.getStart()[i], limit = a.getLimit()[i], stride = a.getStride()[i];
    if (start < 0 || limit < start || limit > type.getDimSize(i) || stride < 1) {
      return Fail(loc, "C2: 0 <= start <= limit <= size and stride >= 1 must hold in each dim");
    }
    shape.push_back(SliceSize(start, limit, stride));
  }
  results.push_back(WithShape(a.getX(), shape));
  return success();
}

INFER(PadOp) {
  auto type = TypeOf(a.getX());
  size_t rank = type.getRank();
  if (a.getLow().size() != rank || a.getHigh().size() != rank || a.getInterior().size() != rank) {
    return Fail(loc, "C1: one low, high and interior for each dim");
  }
  Shape shape;
  for (size_t i = 0; i < rank; ++i) {
    if (a.getLow()[i] < 0 || a.getHigh()[i] < 0 || a.getInterior()[i] < 0) return Fail(loc, "C1: padding must be >= 0");
    shape.push_back(PadSize(type.getDimSize(i), a.getLow()[i], a.getHigh()[i], a.getInterior()[i]));
  }
  results.push_back(WithShape(a.getX(), shape));
  return success();
}

INFER(ConcatOp) {
  if (a.getInputs().empty() || !Within(a.getDim(), a.getInputs()[0])) {
    return Fail(loc, "C1: at least one operand and 0 <= dim < rank");
  }
  auto first = TypeOf(a.getInputs()[0]);
  Shape shape(first.getShape());
  shape[a.getDim()] = 0;
  for (mlir::Value v : a.getInputs()) {
    if (TypeOf(v).getRank() != first.getRank()) return Fail(loc, "C2: operands must agree in rank");
    shape[a.getDim()] += TypeOf(v).getDimSize(a.getDim());
  }
  results.push_back(WithShape(a.getInputs()[0], shape));
  return success();
}

INFER(FftOp) {
  auto type = TypeOf(a.getX());
  Shape shape(type.getShape());
  const ArrayRef<int64_t> lengths = a.getLengths();
  const bool from_real = a.getKind() == FftKind::from_real, to_real = a.getKind() == FftKind::to_real;
  if (lengths.empty() || lengths.size() > 3 || lengths.size() > shape.size()) {
    return Fail(loc, "C1: lengths must be of one to three dims of the operand");
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    int64_t& size = shape[shape.size() - lengths.size() + i];
    const bool last = i + 1 == lengths.size();
    if (lengths[i] < 1 || size != (to_real && last ? lengths[i] / 2 + 1 : lengths[i])) {
      return Fail(loc, "C1: lengths must be the operand's sizes, or what halves of them come from");
    }
    if (last && from_real) size = lengths[i] / 2 + 1;
    if (last && to_real) size = lengths[i];
  }
  auto complex = mlir::dyn_cast<mlir::ComplexType>(type.getElementType());
  const bool part = type.getElementType().isF32() || type.getElementType().isF64();
  if (from_real ? !part : !complex) return Fail(loc, "C2: the operand must be of real or of complex numbers");
  Type element = type.getElementType();
  if (from_real) element = mlir::ComplexType::get(element);
  if (to_real) element = complex.getElementType();
  results.push_back(RankedTensorType::get(shape, element));
  return success();
}

INFER(ReduceOp) {
  auto type = TypeOf(a.getX());
  Shape shape;
  ArrayRef<int64_t> dims = a.getDims();
  for (size_t i = 0; i < dims.size(); ++i) {
    if (!Within(dims[i], a.getX()) || (i > 0 && dims[i] <= dims[i - 1])) {
      return Fail(loc, "C1: dims must be strictly increasing and < rank");
    }
  }
  for (int64_t d = 0; d < type.getRank(); ++d) {
    if (!llvm::is_contained(dims, d)) shape.push_back(type.getDimSize(d));
  }
  results.push_back(WithShape(a.getX(), shape));
  return success();
}

INFER(ArgReduceOp) {
  if (!Within(a.getDim(), a.getX()) || TypeOf(a.getX()).getDimSize(a.getDim()) == 0) {
    return Fail(loc, "C1: 0 <= dim < rank and that dim must not be 0");
  }
  Shape shape(TypeOf(a.getX()).getShape());
  shape.erase(shape.begin() + a.getDim());
  results.push_back(IndexType(context, shape));
  return success();
}

INFER(WindowReduceOp) {
  Shape shape;
  if (mlir::failed(WindowShape(loc, a, shape))) return failure();
  results.push_back(WithShape(a.getX(), shape));
  return success();
}

INFER(WindowArgReduceOp) {
  Shape shape;
  if (mlir::failed(WindowShape(loc, a, shape))) return failure();
  results.push_back(IndexType(context, shape));
  return success();
}

INFER(SortOp) {
  results.push_back(a.getX().getType());
  results.push_back(IndexType(context, TypeOf(a.getX()).getShape()));
  return success();
}

INFER(TakeOp) {
  if (!Within(a.getDim(), a.getX())) return Fail(loc, "C1: 0 <= dim < rank must hold");
  Shape shape(TypeOf(a.getX()).getShape());
  auto indices = TypeOf(a.getIndices()).getShape();
  shape.erase(shape.begin() + a.getDim());
  shape.insert(shape.begin() + a.getDim(), indices.begin(), indices.end());
  results.push_back(WithShape(a.getX(), shape));
  return success();
}

INFER(TakeAlongOp) {
  results.push_back(WithShape(a.getX(), TypeOf(a.getIndices()).getShape()));
  return success();
}

#undef INFER

}  // namespace tpu::ir

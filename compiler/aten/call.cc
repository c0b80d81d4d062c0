#include "compiler/aten/call.h"

#include <numeric>

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace tpu::aten {

using mlir::dyn_cast_if_present;

bool AtenCall::open_sizes() {
  auto function = op_->getParentOfType<mlir::func::FuncOp>();
  return function && HasOpenSizes(function);
}

AtenCall AtenCall::OfParts(llvm::ArrayRef<Part> parts) const {
  AtenCall call(op_, e_, host_kernels_);
  call.parts_.assign(parts.begin(), parts.end());
  return call;
}

Tensor AtenCall::PartOf(Tensor x, int i) {
  if (!by_parts() || !x) return x;
  const Part part = i < static_cast<int>(parts_.size()) ? parts_[i] : Part::kWhole;
  const bool complex = IsComplex(x.dtype());
  misread_ |= part == Part::kWhole && complex;
  if (part == Part::kWhole || part == Part::kReal) return complex ? ir::Real(x) : x;
  if (part == Part::kImaginary && complex) return ir::Imaginary(x);
  return e_.Constant(RealOf(x.dtype()), 0, x.dims());
}

Tensor AtenCall::tensor(int i) {
  mlir::Attribute a = argument(i);
  const auto operand = [&](int64_t n) { return PartOf(e_.Wrap(op_.getOperands()[n]), i); };
  if (auto t = dyn_cast_if_present<ir::TensorArgAttr>(a)) return operand(t.getFirst());
  if (auto s = dyn_cast_if_present<ir::ScalarArgAttr>(a)) return operand(s.getFirst());
  if (auto b = dyn_cast_if_present<mlir::BoolAttr>(a)) return PartOf(e_.Constant(DType::kBool, b.getValue()), i);
  if (auto n = dyn_cast_if_present<mlir::IntegerAttr>(a)) return PartOf(e_.Integer(DType::kInt64, n.getInt()), i);
  if (auto f = dyn_cast_if_present<mlir::FloatAttr>(a)) {
    return PartOf(e_.Constant(DType::kFloat64, f.getValueAsDouble()), i);
  }
  if (auto z = dyn_cast_if_present<mlir::DenseF64ArrayAttr>(a); z && z.size() == 2 && by_parts()) {  // a complex number
    return PartOf(ir::Complex(e_.Constant(DType::kFloat64, z[0]), e_.Constant(DType::kFloat64, z[1])), i);
  }
  if (!has(i)) return Tensor();
  misread_ = true;
  return e_.Constant(DType::kFloat64, 0);
}

llvm::SmallVector<Tensor> AtenCall::tensors(int i) {
  llvm::SmallVector<Tensor> list;
  mlir::Attribute a = argument(i);
  if (auto t = dyn_cast_if_present<ir::TensorListArgAttr>(a)) {
    for (int64_t k = 0, next = t.getFirst(); k < t.getCount(); ++k) {
      bool absent = llvm::is_contained(t.getAbsent(), k);
      list.push_back(absent ? Tensor() : PartOf(e_.Wrap(op_.getOperands()[next++]), i));
    }
  } else if (auto s = dyn_cast_if_present<ir::ScalarListArgAttr>(a)) {
    for (int64_t k = 0; k < s.getCount(); ++k) list.push_back(e_.Wrap(op_.getOperands()[s.getFirst() + k]));
  } else if (auto f = dyn_cast_if_present<mlir::DenseF64ArrayAttr>(a)) {
    misread_ |= by_parts();  // it may be one complex number
    for (double v : f.asArrayRef()) list.push_back(e_.Constant(DType::kFloat64, v));
  } else if (auto n = dyn_cast_if_present<mlir::DenseI64ArrayAttr>(a)) {
    for (int64_t v : n.asArrayRef()) list.push_back(e_.Integer(DType::kInt64, v));
  }
  return list;
}

Shape AtenCall::ints(int i) {
  if (auto list = dyn_cast_if_present<mlir::DenseI64ArrayAttr>(argument(i))) return Shape(list.asArrayRef());
  if (auto one = dyn_cast_if_present<mlir::IntegerAttr>(argument(i))) return {one.getInt()};
  return {};
}

int64_t AtenCall::integer(int i, int64_t otherwise) {
  auto number = dyn_cast_if_present<mlir::IntegerAttr>(argument(i));
  return number ? number.getInt() : otherwise;
}

bool AtenCall::is_static(int i) {
  mlir::Attribute a = argument(i);
  return dyn_cast_if_present<mlir::IntegerAttr>(a) || dyn_cast_if_present<mlir::FloatAttr>(a);
}

double AtenCall::real(int i, double otherwise) {
  mlir::Attribute a = argument(i);
  if (auto f = dyn_cast_if_present<mlir::FloatAttr>(a)) return f.getValueAsDouble();
  if (auto b = dyn_cast_if_present<mlir::BoolAttr>(a)) return b.getValue();
  if (auto n = dyn_cast_if_present<mlir::IntegerAttr>(a)) return static_cast<double>(n.getInt());
  return otherwise;
}

bool AtenCall::boolean(int i, bool otherwise) {
  auto flag = dyn_cast_if_present<mlir::BoolAttr>(argument(i));
  return flag ? flag.getValue() : otherwise;
}

llvm::SmallVector<bool> AtenCall::booleans(int i) {
  auto list = dyn_cast_if_present<mlir::DenseBoolArrayAttr>(argument(i));
  return list ? llvm::SmallVector<bool>(list.asArrayRef()) : llvm::SmallVector<bool>();
}

std::string AtenCall::string(int i) {
  auto text = dyn_cast_if_present<mlir::StringAttr>(argument(i));
  return text ? text.getValue().str() : "";
}

std::optional<DType> AtenCall::dtype(int i) {
  auto type = dyn_cast_if_present<mlir::TypeAttr>(argument(i));
  if (!type) return std::nullopt;
  return ir::DTypeOf(type.getValue());
}

int64_t AtenCall::Wrapped(int64_t dim, int64_t rank) {
  if (dim < 0) dim += rank;
  if (dim >= 0 && dim < rank) return dim;
  misread_ = true;
  return 0;
}

Shape AtenCall::dims(int i, int64_t rank, bool empty_is_all) {
  Shape list = ints(i);
  if (rank == 0) return {};
  if (!has(i) || (list.empty() && empty_is_all)) {
    list.resize(rank);
    std::iota(list.begin(), list.end(), 0);
  }
  for (int64_t& d : list) d = Wrapped(d, rank);
  llvm::sort(list);
  return list;
}

int64_t AtenCall::dim(int i, int64_t rank, int64_t otherwise) {
  return Wrapped(integer(i, otherwise), std::max<int64_t>(rank, 1));
}

DType AtenCall::promoted() {
  if (auto type = op_.getPromoted()) return InThisCall(ir::DTypeOf(*type));
  return result_dtype();
}

DType AtenCall::float_compute() {
  if (IsFloat(promoted())) return OpMath(promoted());
  return num_results() > 0 && result_dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

Result Asked(AtenCall& c, llvm::ArrayRef<bool> mask, llvm::ArrayRef<Tensor> gradients) {
  llvm::SmallVector<Tensor> results;
  bool all = c.num_results() == gradients.size();
  for (auto [i, gradient] : llvm::enumerate(gradients)) {
    bool asked = (i >= mask.size() || mask[i]) && gradient && (!all || c.result_dims(i) == gradient.dims());
    if (asked) {
      results.push_back(gradient);
    } else if (all) {
      results.push_back(c.emitter().Constant(c.result_dtype(i), 0, c.result_dims(i)));
    }
  }
  return Result(std::move(results));
}

}  // namespace tpu::aten

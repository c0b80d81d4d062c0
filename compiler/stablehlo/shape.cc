// Primitives that move elements.
#include "absl/strings/str_cat.h"
#include "compiler/stablehlo/emit.h"
#include "llvm/ADT/TypeSwitch.h"

namespace tpu::stablehlo {
namespace {

int64_t BitsOf(mlir::Type element) {
  if (auto complex = mlir::dyn_cast<mlir::ComplexType>(element)) {
    return 2 * complex.getElementType().getIntOrFloatBitWidth();
  }
  return element.getIntOrFloatBitWidth();
}

// A complex element as two of its parts, in a new last dim; and back.
Val Parts(Writer& w, Val x) {
  mlir::Type part = mlir::cast<mlir::ComplexType>(x.element()).getElementType();
  Dims dims(x.dims());
  dims.push_back(1);
  Val real = w.Reshape(w.Op("real", {x}, WithElement(x.type, part)), dims);
  Val imaginary = w.Reshape(w.Op("imag", {x}, WithElement(x.type, part)), dims);
  dims.back() = 2;
  return w.Concat({real, imaginary}, x.rank(), WithDims(real.type, dims));
}
Val FromParts(Writer& w, Val x, mlir::Type complex) {
  Dims zero(x.rank(), 0), one(x.rank(), 1), middle = zero, limit(x.dims());
  limit.back() = 1;
  middle.back() = 1;
  Val real = w.Slice(x, zero, limit, one);
  Val imaginary = w.Slice(x, middle, x.dims(), one);
  Ints dims = x.dims().drop_back();
  return w.Op("complex", {w.Reshape(real, dims), w.Reshape(imaginary, dims)},
              WithElement(WithDims(x.type, dims), complex));
}

// The same bytes as another element type. StableHLO keeps the ratio of two sizes in a dim of its own, and has no bytes
// for i1 and complex numbers.
Val Bitcast(Writer& w, Val x, mlir::RankedTensorType result) {
  mlir::MLIRContext* context = x.type.getContext();
  const mlir::Type byte = mlir::IntegerType::get(context, 8, mlir::IntegerType::Unsigned);
  if (x.is_bool()) x = w.Convert(x, byte);
  if (x.is_complex()) {
    Val parts = Parts(w, x);
    Dims dims(x.dims());
    if (dims.empty()) dims.push_back(1);
    dims.back() *= 2;
    x = w.Reshape(parts, dims);
  }
  mlir::Type element = result.getElementType();
  auto complex = mlir::dyn_cast<mlir::ComplexType>(element);
  const mlir::Type target = element.isInteger(1) ? byte : complex ? complex.getElementType() : element;
  Dims dims(result.getShape());
  if (complex) dims.push_back(2);
  const int64_t from = BitsOf(x.element()), to = BitsOf(target);
  Val y = x;
  if (from > to) {
    Dims wide(x.dims());
    wide.push_back(from / to);
    y = w.Op("bitcast_convert", {x}, mlir::RankedTensorType::get(wide, target));
  } else if (from < to) {
    Dims narrow(x.dims());
    narrow.back() /= to / from;
    const Dims whole = narrow;
    narrow.push_back(to / from);
    y = w.Op("bitcast_convert", {w.Reshape(x, narrow)}, mlir::RankedTensorType::get(whole, target));
  } else if (x.element() != target) {
    y = w.Op("bitcast_convert", {x}, WithElement(x.type, target));
  }
  y = w.Reshape(y, dims);
  if (complex) return FromParts(w, y, element);
  return element.isInteger(1) ? w.Compare("NE", y, w.Splat(y.type, 0)) : y;
}

Val UpdateSlice(Writer& w, Val base, Val src, Ints start, Ints stride) {
  if (src.type.getNumElements() == 0) return base;
  if (llvm::all_of(stride, [](int64_t s) { return s == 1; })) {
    mlir::Builder b(base.type.getContext());
    llvm::SmallVector<Val> operands{base, src};
    for (int64_t s : start) {
      operands.push_back(w.Splat(mlir::RankedTensorType::get({}, b.getI64Type()), static_cast<double>(s)));
    }
    return w.Op("dynamic_update_slice", operands, base.type);
  }
  Dims high, interior;
  for (int64_t d = 0; d < base.rank(); ++d) {
    interior.push_back(stride[d] - 1);
    high.push_back(base.dims()[d] - start[d] - (src.dims()[d] - 1) * stride[d] - 1);
  }
  mlir::Builder b(base.type.getContext());
  const auto truth = mlir::RankedTensorType::get({}, b.getI1Type());
  Val written = w.Splat(WithElement(src.type, b.getI1Type()), 1);
  Val mask = w.Pad(written, w.Splat(truth, 0), start, high, interior);
  Val spread = w.Pad(src, w.Splat(WithDims(src.type, {}), 0), start, high, interior);
  return w.Select(mask, spread, base);
}

}  // namespace

bool EmitShape(Emission& e, mlir::Operation* op) {
  Writer& w = e.w;
  const auto set = [&](Val v) {
    e.Set(op->getResult(0), std::move(v));
    return true;
  };
  return llvm::TypeSwitch<mlir::Operation*, bool>(op)
      .Case<ir::ConstantOp>([&](ir::ConstantOp o) { return set(w.Constant(o.getValue())); })
      .Case<ir::IotaOp>(
          [&](ir::IotaOp o) { return set(w.Iota(ir::TensorTypeOf(o.getResult()), static_cast<int64_t>(o.getDim()))); })
      .Case<ir::ReshapeOp>(
          [&](ir::ReshapeOp o) { return set(w.Reshape(e.Of(o.getX()), ir::TensorTypeOf(o.getResult()).getShape())); })
      .Case<ir::TransposeOp>([&](ir::TransposeOp o) {
        return set(w.Op("transpose", {e.Of(o.getX())}, Stored(ir::TensorTypeOf(o.getResult())),
                        absl::StrCat("permutation = ", Array(o.getPermutation()))));
      })
      .Case<ir::BroadcastOp>([&](ir::BroadcastOp o) {
        return set(w.Broadcast(e.Of(o.getX()), ir::TensorTypeOf(o.getResult()).getShape(), o.getDims()));
      })
      .Case<ir::SliceOp>(
          [&](ir::SliceOp o) { return set(w.Slice(e.Of(o.getX()), o.getStart(), o.getLimit(), o.getStride())); })
      .Case<ir::ReverseOp>([&](ir::ReverseOp o) {
        Val x = e.Of(o.getX());
        return set(w.Op("reverse", {x}, x.type, absl::StrCat("dimensions = ", Array(o.getDims()))));
      })
      .Case<ir::PadOp>([&](ir::PadOp o) {
        return set(w.Pad(e.Of(o.getX()), e.Of(o.getValue()), o.getLow(), o.getHigh(), o.getInterior()));
      })
      .Case<ir::ConcatOp>([&](ir::ConcatOp o) {
        llvm::SmallVector<Val> inputs;
        for (mlir::Value v : o.getInputs()) inputs.push_back(e.Of(v));
        return set(w.Concat(inputs, static_cast<int64_t>(o.getDim()), Stored(ir::TensorTypeOf(o.getResult()))));
      })
      .Case<ir::UpdateSliceOp>([&](ir::UpdateSliceOp o) {
        return set(UpdateSlice(w, e.Of(o.getBase()), e.Of(o.getSrc()), o.getStart(), o.getStride()));
      })
      .Case<ir::BitcastOp>(
          [&](ir::BitcastOp o) { return set(Bitcast(w, e.Of(o.getX()), Stored(ir::TensorTypeOf(o.getResult())))); })
      .Default([](mlir::Operation*) { return false; });
}

}  // namespace tpu::stablehlo

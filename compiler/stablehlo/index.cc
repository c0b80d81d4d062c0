// Primitives whose positions are data. StableHLO leaves an index out of range to the device: each that reads or writes
// an element is checked, and the module's last result tells.
#include "absl/strings/str_cat.h"
#include "compiler/stablehlo/emit.h"
#include "llvm/ADT/TypeSwitch.h"

namespace tpu::stablehlo {
namespace {

Dims AllBut(int64_t rank, int64_t dim) {
  Dims dims;
  for (int64_t d = 0; d < rank; ++d) {
    if (d != dim) dims.push_back(d);
  }
  return dims;
}

void CheckRange(Emission& e, mlir::Value index, int64_t size) {
  Writer& w = e.w;
  Val indices = e.Of(index);
  if (indices.type.getNumElements() == 0) return;
  Val below = w.Compare("LT", indices, w.Splat(indices.type, 0));
  Val above = w.Compare("GE", indices, w.Splat(indices.type, static_cast<double>(size)));
  Val outside = w.Or(below, above);
  Dims all;
  for (int64_t d = 0; d < outside.rank(); ++d) all.push_back(d);
  if (!all.empty()) outside = w.Reduce("or", outside, w.Splat(WithDims(outside.type, {}), 0), all);
  e.checks.push_back(outside);
}

Val Gather(Writer& w, Val x, Val indices, int64_t dim) {
  Dims dims(x.dims()), offset, sizes(x.dims());
  dims.erase(dims.begin() + dim);
  dims.insert(dims.begin() + dim, indices.dims().begin(), indices.dims().end());
  for (int64_t d = 0; d < static_cast<int64_t>(dims.size()); ++d) {
    if (d < dim || d >= dim + indices.rank()) offset.push_back(d);
  }
  sizes[dim] = 1;
  return w.Op("gather", {x, indices}, WithDims(x.type, dims),
              absl::StrCat("dimension_numbers = #stablehlo.gather<offset_dims = ", List(offset),
                           ", collapsed_slice_dims = [", dim, "], start_index_map = [", dim, "], index_vector_dim = ",
                           indices.rank(), ">, slice_sizes = ", Array(sizes), ", indices_are_sorted = false"));
}

Val Take(Emission& e, ir::TakeOp op) {
  const int64_t dim = static_cast<int64_t>(op.getDim());
  Val x = e.Of(op.getX());
  const auto result = Stored(ir::TensorTypeOf(op.getResult()));
  if (result.getNumElements() == 0) return e.w.Splat(result, 0);
  CheckRange(e, op.getIndices(), x.dims()[dim]);
  if (x.dims()[dim] == 0) return e.w.Splat(result, 0);  // every index is out of range
  return Gather(e.w, x, e.Of(op.getIndices()), dim);
}

// x cut to the sizes of `like` in every dim but `dim`.
Val CutTo(Writer& w, Val x, Val like, int64_t dim) {
  Dims limit(like.dims());
  limit[dim] = x.dims()[dim];
  return Ints(limit) == x.dims() ? x : w.Slice(x, Dims(x.rank(), 0), limit, Dims(x.rank(), 1));
}

Val TakeAlong(Emission& e, ir::TakeAlongOp op) {
  const int64_t dim = static_cast<int64_t>(op.getDim());
  Val indices = e.Of(op.getIndices()), x = CutTo(e.w, e.Of(op.getX()), indices, dim);
  CheckRange(e, op.getIndices(), x.dims()[dim]);
  const auto result = Stored(ir::TensorTypeOf(op.getResult()));
  if (x.dims()[dim] == 0 || result.getNumElements() == 0) return e.w.Splat(result, 0);
  const std::string others = List(AllBut(x.rank(), dim));
  return e.w.Op("gather", {x, indices}, result,
                absl::StrCat("dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [", dim,
                             "], operand_batching_dims = ", others, ", start_indices_batching_dims = ", others,
                             ", start_index_map = [", dim, "], index_vector_dim = ", indices.rank(),
                             ">, slice_sizes = ", Array(Dims(x.rank(), 1)), ", indices_are_sorted = false"));
}

Val ScatterInto(Writer& w, ir::ScatterKind kind, Val base, Val indices, Val updates, const std::string& numbers,
                bool sorted = false) {
  const std::string body = w.Region({base.element(), base.element()}, [&](llvm::ArrayRef<Val> a) {
    constexpr const char* kNames[] = {"", "add", "multiply", "maximum", "minimum"};
    if (kind == ir::ScatterKind::set) return llvm::SmallVector<Val>{a[1]};
    return llvm::SmallVector<Val>{w.Op(kNames[static_cast<int>(kind)], {a[0], a[1]}, a[0].type)};
  });
  return w.Op("scatter", {base, indices, updates}, base.type,
              absl::StrCat("scatter_dimension_numbers = #stablehlo.scatter<", numbers,
                           ">, indices_are_sorted = ", sorted ? "true" : "false", ", unique_indices = false"),
              body);
}

Val Scatter(Emission& e, ir::ScatterOp op) {
  const int64_t dim = static_cast<int64_t>(op.getDim());
  Val base = e.Of(op.getBase()), indices = e.Of(op.getIndices());
  CheckRange(e, op.getIndices(), base.dims()[dim]);
  if (indices.type.getNumElements() == 0 || base.type.getNumElements() == 0) return base;
  Val part = CutTo(e.w, base, indices, dim);
  const std::string others = List(AllBut(base.rank(), dim));
  Val written =
      ScatterInto(e.w, op.getKind(), part, indices, e.Of(op.getUpdates()),
                  absl::StrCat("inserted_window_dims = [", dim, "], input_batching_dims = ", others,
                               ", scatter_indices_batching_dims = ", others, ", scatter_dims_to_operand_dims = [", dim,
                               "], index_vector_dim = ", indices.rank()));
  if (written.type == base.type) return written;
  mlir::Builder b(base.type.getContext());
  llvm::SmallVector<Val> operands{base, written};
  operands.append(base.rank(), e.w.Splat(mlir::RankedTensorType::get({}, b.getI64Type()), 0));
  return e.w.Op("dynamic_update_slice", operands, base.type);
}

Val ScatterRows(Emission& e, ir::ScatterRowsOp op) {
  const int64_t dim = static_cast<int64_t>(op.getDim());
  Val base = e.Of(op.getBase()), indices = e.Of(op.getIndices()), updates = e.Of(op.getUpdates());
  if (updates.type.getNumElements() == 0) return base;
  CheckRange(e, op.getIndices(), base.dims()[dim]);
  if (base.type.getNumElements() == 0) return base;
  return ScatterInto(e.w, op.getKind(), base, indices, updates,
                     absl::StrCat("update_window_dims = ", List(AllBut(base.rank(), dim)), ", inserted_window_dims = [",
                                  dim, "], scatter_dims_to_operand_dims = [", dim, "], index_vector_dim = 1"));
}

// StableHLO leaves out updates whose place is out of range.
Val SumTaken(Emission& e, ir::SumTakenOp op) {
  Writer& w = e.w;
  Val x = e.Of(op.getX()), from = e.Of(op.getFrom()), to = e.Of(op.getTo());
  CheckRange(e, op.getFrom(), x.dims()[0]);
  const Val none = w.Splat(Stored(ir::TensorTypeOf(op.getResult())), 0);
  const int64_t width = x.dims()[1];
  if (from.type.getNumElements() == 0 || x.type.getNumElements() == 0 || none.type.getNumElements() == 0) return none;
  Val rows = w.Convert(Gather(w, x, from, 0), none.element());
  if (op.getWeights()) {
    rows = w.Op("multiply", {rows, w.Broadcast(e.Of(op.getWeights()), {from.dims()[0], width}, {0})}, rows.type);
  }
  return ScatterInto(w, ir::ScatterKind::add, none, to, rows,
                     "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
                     "index_vector_dim = 1",
                     op.getSorted());
}

}  // namespace

bool EmitIndex(Emission& e, mlir::Operation* op) {
  return llvm::TypeSwitch<mlir::Operation*, bool>(op)
      .Case<ir::TakeOp>([&](ir::TakeOp o) { return e.Set(o.getResult(), Take(e, o)), true; })
      .Case<ir::TakeAlongOp>([&](ir::TakeAlongOp o) { return e.Set(o.getResult(), TakeAlong(e, o)), true; })
      .Case<ir::ScatterOp>([&](ir::ScatterOp o) { return e.Set(o.getResult(), Scatter(e, o)), true; })
      .Case<ir::ScatterRowsOp>([&](ir::ScatterRowsOp o) { return e.Set(o.getResult(), ScatterRows(e, o)), true; })
      .Case<ir::SumTakenOp>([&](ir::SumTakenOp o) { return e.Set(o.getResult(), SumTaken(e, o)), true; })
      .Default([](mlir::Operation*) { return false; });
}

}  // namespace tpu::stablehlo

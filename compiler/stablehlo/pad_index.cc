// Primitives whose positions are data: those of padding are harmless, those in it out of range.
#include <utility>

#include "compiler/stablehlo/size_padding.h"

namespace tpu::stablehlo {

// Which bits an element has follows from how many come before it.
void SizePadding::RandomBits(ir::RandomBitsOp op) {
  const llvm::SmallVector<Numbers> sizes = SizesOf(0);
  const Numbers count = Product(sizes, pad_.points());
  if (IsFixed(count)) return Keep(Plain());
  const Tensor flat = e().RandomBits(Same(op.getSeed()), Same(op.getOffset()), {count.back()});
  const Tensor moved = pad_.Move(flat, 0, {count}, Factors(sizes.begin(), sizes.end()));
  Replace(ir::Reshape(moved, Same(op.getResult()).dims()), Plain());
}

// Indices into `size` elements, where padding says `unused` and what is out of range `out_of_range`, also where it is
// within what the largest size has.
Tensor SizePadding::Indices(Value indices, const Numbers& size, int64_t out_of_range) {
  Tensor where = Same(indices);
  if (!IsFixed(size) || out_of_range > size.back()) {
    where = ir::Select(ir::Ge(where, pad_.Number(size)), e().Integer(DType::kInt64, out_of_range, where.dims()), where);
  }
  return where;
}

// What is taken at padding is as good as any; where indices are alike, it stays that of the others.
Tensor SizePadding::InRange(Tensor indices, const Layout& layout) {
  llvm::SmallVector<int64_t> dims;
  for (const auto& [d, dim] : llvm::enumerate(layout)) {
    if (!dim.alike) dims.push_back(static_cast<int64_t>(d));
  }
  return pad_.Fill(indices, layout, dims, Zero(DType::kInt64));
}

void SizePadding::Take(ir::TakeOp op) {
  const auto dim = static_cast<int64_t>(op.getDim());
  Layout layout = Of(op.getX());
  const Layout& of = Of(op.getIndices());
  const Tensor x = Straight(Same(op.getX()), layout, dim);
  const Tensor where = InRange(Indices(op.getIndices(), layout[dim].size, x.size(dim)), of);
  op.getXMutable().assign(x.value());
  op.getIndicesMutable().assign(where.value());
  layout.erase(layout.begin() + dim);
  layout.insert(layout.begin() + dim, of.begin(), of.end());
  Keep(std::move(layout));
}

void SizePadding::TakeAlong(ir::TakeAlongOp op) {
  const auto dim = static_cast<int64_t>(op.getDim());
  Tensor x = Same(op.getX()), where = Same(op.getIndices());
  Layout of_x = Of(op.getX()), of = Of(op.getIndices());
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (d == dim || of_x[d].size != of[d].size) {
      x = Straight(x, of_x, d);
      if (d != dim) where = Straight(where, of, d);
    } else {
      Agree(x, of_x, d, where, of, d);
    }
    if (of[d].alike) of[d] = of_x[d].size == of[d].size ? of_x[d] : PlainDim(of[d].size);
  }
  where = Indices(where.value(), of_x[dim].size, x.size(dim));
  op.getXMutable().assign(x.value());
  op.getIndicesMutable().assign(InRange(where, of).value());
  Keep(std::move(of));
}

// What is written for padding goes to one element more along the dim, which is cut off.
template <typename Op>
void SizePadding::Scatter(Op op, bool rows) {
  const auto dim = static_cast<int64_t>(op.getDim());
  Tensor base = Same(op.getBase()), where = Same(op.getIndices()), updates = Same(op.getUpdates());
  Layout into = Of(op.getBase()), of = Of(op.getIndices()), from = Of(op.getUpdates());
  base = Straight(base, into, dim);
  for (int64_t d = 0; d < base.rank(); ++d) {
    const bool taken_along = rows ? d == dim : true;  // a dim of the indices
    const int64_t of_indices = rows ? 0 : d;
    if (taken_along) Agree(updates, from, d, where, of, of_indices);
    if (d == dim) continue;
    if (into[d].size == from[d].size) {
      if (from[d].alike) from[d] = into[d].alike ? PlainDim(into[d].size) : into[d];
      if (into[d].alike) into[d] = from[d];
      updates = Moved(updates, from, d, into[d]);
      if (taken_along) where = Moved(where, of, of_indices, into[d]);
      if (taken_along && of[of_indices].alike) of[of_indices] = into[d];
    } else {
      base = Straight(base, into, d);
      updates = Straight(updates, from, d);
      if (taken_along) where = Straight(where, of, of_indices);
    }
  }
  for (OpenDim& d : into) d = d.alike ? PlainDim(d.size) : d;
  const int64_t size = base.size(dim);
  const bool padded = llvm::any_of(of, [](const OpenDim& d) { return d.open(); });
  where = Indices(where.value(), into[dim].size, padded ? size + 1 : size);
  where = pad_.FillAll(where, of, e().Integer(DType::kInt64, size));
  if (padded) {
    ir::Shape none(base.rank(), 0), one = none;
    one[dim] = 1;
    base = ir::Pad(base, Zero(base.dtype()), none, one, none);
  }
  Tensor result = rows ? ir::ScatterRows(op.getKind(), base, where, updates, dim)
                       : ir::Scatter(op.getKind(), base, where, updates, dim);
  if (padded) result = ir::SliceDim(result, dim, 0, size);
  Replace(result, std::move(into));
}

template void SizePadding::Scatter(ir::ScatterOp, bool);
template void SizePadding::Scatter(ir::ScatterRowsOp, bool);

// Padding goes to a row that is none.
void SizePadding::SumTaken(ir::SumTakenOp op) {
  Layout of_x = Of(op.getX()), of_from = Of(op.getFrom()), of_to = Of(op.getTo());
  const Tensor x = Straight(Same(op.getX()), of_x, 0);
  const Tensor from = Straight(Same(op.getFrom()), of_from, 0), to = Straight(Same(op.getTo()), of_to, 0);
  const Tensor none = e().Integer(DType::kInt64, SizeOf(0, 0).back());
  op.getXMutable().assign(x.value());
  op.getFromMutable().assign(
      pad_.FillAll(Indices(from.value(), of_x[0].size, x.size(0)), of_from, Zero(DType::kInt64)).value());
  op.getToMutable().assign(pad_.FillAll(to, of_to, none).value());
  if (Value weights = op.getWeights()) {
    Layout of_weights = Of(weights);
    op.getWeightsMutable().assign(Straight(Same(weights), of_weights, 0).value());
  }
  Keep({PlainDim(SizeOf(0, 0)), of_x[1]});
}

}  // namespace tpu::stablehlo

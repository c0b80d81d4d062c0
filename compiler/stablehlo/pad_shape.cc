// Primitives that move elements: what begins at a fixed place stays as it is, the rest is moved together.
#include <utility>

#include "compiler/stablehlo/size_padding.h"

namespace tpu::stablehlo {

void SizePadding::ReshapeTo(ir::ReshapeOp op) {
  std::optional<Reshaped> reshaped = Reshape(Of(op.getX()), SizesOf(0));
  if (!reshaped) return Refuse("other dims at other sizes");
  if (llvm::any_of(reshaped->runs, [](const Regrouped& run) { return run.moves; })) {
    ir::Shape runs;
    for (const Regrouped& run : reshaped->runs) runs.push_back(run.elements);
    Tensor x = ir::Reshape(Same(op.getX()), runs);
    for (const auto& [r, run] : llvm::enumerate(reshaped->runs)) {
      if (run.moves) x = pad_.Move(x, static_cast<int64_t>(r), run.from, run.to);
    }
    op.getXMutable().assign(x.value());
  }
  Keep(std::move(reshaped->layout));
}

void SizePadding::Broadcast(ir::BroadcastOp op) {
  Layout layout;
  for (const Numbers& size : SizesOf(0)) layout.push_back(AlikeDim(size));
  const Layout& x = Of(op.getX());
  for (const auto& [i, d] : llvm::enumerate(op.getDims())) {
    if (x[i].size == layout[d].size) {
      layout[d] = x[i];
    } else if (!IsAll(x[i].size, 1)) {
      return Refuse("a dim that is 1 at some sizes");
    }
  }
  Keep(std::move(layout));
}

// Parts of the positions along a dim that begin at a fixed one are as they are at the largest size. Others are taken.
void SizePadding::Slice(ir::SliceOp op) {
  Tensor x = Same(op.getX());
  Layout layout = Of(op.getX());
  ir::Shape start(op.getStart()), limit(op.getLimit()), stride(op.getStride());
  for (int64_t d = 0; d < x.rank(); ++d) {
    const Numbers size = SizeOf(0, d);
    const Numbers from = Each<ir::SliceOp>([&](ir::SliceOp o) { return o.getStart()[d]; });
    const Numbers by = Each<ir::SliceOp>([&](ir::SliceOp o) { return o.getStride()[d]; });
    if (layout[d].size == size) continue;  // all of them
    if (!IsFixed(by)) return Refuse("strides follow the sizes");
    x = Straight(x, layout, d);
    if (!IsFixed(from)) {
      const Tensor steps = e().Iota(DType::kInt64, {size.back()}, 0) * static_cast<double>(stride[d]);
      x = pad_.TakeWithin(x, d, steps + pad_.Number(from));
      start[d] = 0;
      limit[d] = size.back();
      stride[d] = 1;
    }
    layout[d] = layout[d].alike ? AlikeDim(size) : PlainDim(size);
  }
  Replace(ir::Slice(x, start, limit, stride), std::move(layout));
}

void SizePadding::UpdateSlice(ir::UpdateSliceOp op) {
  Tensor base = Same(op.getBase()), src = Same(op.getSrc());
  Layout into = Of(op.getBase()), layout = Of(op.getSrc());
  llvm::SmallVector<int64_t> parts;  // dims of which a part is written
  bool fixed = true;
  for (int64_t d = 0; d < base.rank(); ++d) {
    const Numbers start = Each<ir::UpdateSliceOp>([&](ir::UpdateSliceOp o) { return o.getStart()[d]; });
    const bool whole = IsAll(start, 0) && into[d].size == layout[d].size;
    if (whole) {
      Agree(base, into, d, src, layout, d);
      continue;
    }
    if (!IsFixed(Each<ir::UpdateSliceOp>([&](ir::UpdateSliceOp o) { return o.getStride()[d]; }))) {
      return Refuse("strides follow the sizes");
    }
    base = Straight(base, into, d);
    src = Straight(src, layout, d);
    into[d] = PlainDim(into[d].size);
    layout[d] = PlainDim(layout[d].size);
    parts.push_back(d);
    fixed &= IsFixed(start) && !layout[d].open();
  }
  if (fixed) {  // what is there is written whole, at one place
    return Replace(ir::UpdateSlice(base, src, op.getStart(), op.getStride()), std::move(into));
  }
  Tensor written;
  for (const int64_t d : parts) {
    if (op.getStride()[d] != 1) return Refuse("strides of a part that follows the sizes");
    const Numbers start = Each<ir::UpdateSliceOp>([&](ir::UpdateSliceOp o) { return o.getStart()[d]; });
    const auto [put, inside] = pad_.PutAt(src, d, layout[d].size, start, base.size(d));
    src = put;
    const Tensor along = ir::BroadcastAlong(inside, base.dims(), {d});
    written = written ? written & along : along;
  }
  Replace(ir::Select(written, src, base), std::move(into));
}

void SizePadding::PadOut(ir::PadOp op) {
  Tensor x = Same(op.getX()), value = Same(op.getValue());
  Layout layout = Of(op.getX());
  ir::Shape low(op.getLow()), high(op.getHigh()), interior(op.getInterior());
  for (int64_t d = 0; d < x.rank(); ++d) {
    const Numbers size = SizeOf(0, d);
    const Numbers before = Each<ir::PadOp>([&](ir::PadOp o) { return o.getLow()[d]; });
    const Numbers between = Each<ir::PadOp>([&](ir::PadOp o) { return o.getInterior()[d]; });
    if (layout[d].size == size && IsAll(before, 0) && IsAll(between, 0)) continue;
    if (!IsFixed(between)) return Refuse("gaps follow the sizes");
    x = Straight(x, layout, d);
    if (IsFixed(before)) {
      x = pad_.Fill(x, layout, {d}, value);
    } else {
      if (interior[d] != 0) return Refuse("gaps behind what follows the sizes");
      const auto [put, inside] = pad_.PutAt(x, d, layout[d].size, before, size.back());
      x = ir::Select(ir::BroadcastAlong(inside, put.dims(), {d}), put, ir::BroadcastTo(value, put.dims()));
      low[d] = high[d] = 0;
    }
    layout[d] = PlainDim(size);
  }
  Replace(ir::Pad(x, value, low, high, interior), std::move(layout));
}

// One after the other as they are at the largest size; then what is there moves together.
void SizePadding::Concat(ir::ConcatOp op) {
  const auto dim = static_cast<int64_t>(op.getDim());
  llvm::SmallVector<Tensor> parts;
  Layout layout = Common();
  Numbers begin(pad_.points(), 0);
  int64_t lies = 0;
  Tensor place, where;
  for (Value input : op.getInputs()) {
    Tensor x = Same(input);
    Layout of = Of(input);
    for (int64_t d = 0; d < x.rank(); ++d) x = d == dim ? Straight(x, of, d) : Moved(x, of, d, layout[d]);
    if (!IsFixed(begin)) {
      if (!where) where = place = e().Iota(DType::kInt64, {SizeOf(0, dim).back()}, 0);
      const Tensor first = pad_.Number(begin);
      where = ir::Select(ir::Ge(place, first), place - first + static_cast<double>(lies), where);
    }
    begin = Plus(std::move(begin), of[dim].size);
    lies += x.size(dim);
    parts.push_back(x);
  }
  layout[dim] = PlainDim(SizeOf(0, dim));
  Tensor joined = ir::Concat(parts, dim);
  Replace(where ? pad_.TakeWithin(joined, dim, where) : joined, std::move(layout));
}

void SizePadding::Reverse(ir::ReverseOp op) {
  Tensor x = Same(op.getX());
  Layout layout = Of(op.getX());
  llvm::SmallVector<int64_t> fixed;
  for (const int64_t d : op.getDims()) {
    if (!layout[d].open()) {
      fixed.push_back(d);
    } else if (!layout[d].alike) {
      x = Straight(x, layout, d);
      const Tensor last = pad_.Number(Plus(layout[d].size, Numbers(pad_.points(), -1)));
      x = pad_.TakeWithin(x, d, last - e().Iota(DType::kInt64, {x.size(d)}, 0));
    }
  }
  Replace(fixed.empty() ? x : ir::Reverse(x, fixed), std::move(layout));
}

void SizePadding::Bitcast(ir::BitcastOp op) {
  Layout layout = Of(op.getX());
  if (!layout.empty()) {
    const Numbers size = SizeOf(0, static_cast<int64_t>(layout.size()) - 1);
    if (layout.back().size != size) {
      if (layout.back().open()) return Refuse("elements of another size along a dim that follows the sizes");
      layout.back() = PlainDim(size);
    }
  }
  Keep(std::move(layout));
}

}  // namespace tpu::stablehlo

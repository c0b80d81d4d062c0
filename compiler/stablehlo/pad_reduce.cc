// Many elements to one: padding counts as what changes nothing.
#include <utility>

#include "compiler/stablehlo/size_padding.h"

namespace tpu::stablehlo {

Tensor SizePadding::Identity(ir::ReduceKind kind, DType dtype) {
  switch (kind) {
    case ir::ReduceKind::max:
      return e().Lowest(dtype);
    case ir::ReduceKind::min:
      return e().Highest(dtype);
    case ir::ReduceKind::prod:
    case ir::ReduceKind::all:
      return e().Constant(dtype, 1);
    default:
      return e().Constant(dtype, 0);
  }
}

void SizePadding::Reduce(ir::ReduceOp op) {
  Tensor x = Same(op.getX());
  const Layout& lies = Of(op.getX());
  Layout layout;
  for (const auto& [d, dim] : llvm::enumerate(lies)) {
    if (!llvm::is_contained(op.getDims(), static_cast<int64_t>(d))) layout.push_back(dim);
  }
  op.getXMutable().assign(pad_.Fill(x, lies, op.getDims(), Identity(op.getKind(), x.dtype())).value());
  Keep(std::move(layout));
}

void SizePadding::ArgReduce(ir::ArgReduceOp op) {
  const auto dim = static_cast<int64_t>(op.getDim());
  Layout layout = Of(op.getX());
  Tensor x = Straight(Same(op.getX()), layout, dim);
  const bool most = op.getKind() == ir::ExtremumKind::max;
  x = pad_.Fill(x, layout, {dim}, most ? e().Lowest(x.dtype()) : e().Highest(x.dtype()));
  op.getXMutable().assign(x.value());
  layout.erase(layout.begin() + dim);
  Keep(std::move(layout));
}

void SizePadding::Dot(ir::DotOp op) {
  Tensor a = Same(op.getLhs()), b = Same(op.getRhs());
  Layout of_a = Of(op.getLhs()), of_b = Of(op.getRhs()), layout;
  for (const auto& [d, f] : llvm::zip(op.getLhsBatch(), op.getRhsBatch())) {
    Agree(a, of_a, d, b, of_b, f);
    layout.push_back(of_a[d]);
  }
  for (const auto& [d, f] : llvm::zip(op.getLhsContract(), op.getRhsContract())) Agree(a, of_a, d, b, of_b, f);
  a = pad_.Fill(a, of_a, op.getLhsContract(), Zero(a.dtype()));
  b = pad_.Fill(b, of_b, op.getRhsContract(), Zero(b.dtype()));
  const auto free = [&](const Layout& of, ir::Ints batch, ir::Ints contract) {
    for (const auto& [d, dim] : llvm::enumerate(of)) {
      const auto at = static_cast<int64_t>(d);
      if (!llvm::is_contained(batch, at) && !llvm::is_contained(contract, at)) layout.push_back(dim);
    }
  };
  free(of_a, op.getLhsBatch(), op.getLhsContract());
  free(of_b, op.getRhsBatch(), op.getRhsContract());
  op.getLhsMutable().assign(a.value());
  op.getRhsMutable().assign(b.value());
  Keep(std::move(layout));
}

// Zeros beyond what is there are as good as those outside.
void SizePadding::Conv(ir::ConvOp op) {
  const int64_t outer = op.getSwapped() ? 1 : 0, inner = 1 - outer;
  const bool split = op.getFeatureGroups() > 1 ? Of(op.getLhs())[inner].open() || Of(op.getRhs())[outer].open()
                     : op.getBatchGroups() > 1 ? Of(op.getLhs())[outer].open() || Of(op.getRhs())[outer].open()
                                               : false;
  if (split) return Refuse("groups of what follows the sizes");
  for (const unsigned i : {0u, 1u}) {
    Tensor x = Same(op->getOperand(i));
    Layout layout = Of(x.value());
    for (int64_t d = 0; d < x.rank(); ++d) x = Straight(x, layout, d);
    op->setOperand(i, pad_.FillAll(x, layout, Zero(x.dtype())).value());
  }
  Keep(Plain());
}

void SizePadding::WindowReduce(ir::WindowReduceOp op) {
  Tensor x = Same(op.getX());
  Layout layout = Of(op.getX());
  const int64_t first = x.rank() - static_cast<int64_t>(op.getWindow().size());
  for (int64_t d = first; d < x.rank(); ++d) {
    const int64_t w = d - first;
    if (op.getWindow()[w] == 1 && op.getStrides()[w] == 1 && op.getPaddingLow()[w] + op.getPaddingHigh()[w] == 0) {
      continue;
    }
    x = pad_.Fill(Straight(x, layout, d), layout, {d}, Identity(op.getKind(), x.dtype()));
    layout[d] = PlainDim(SizeOf(0, d));
  }
  op.getXMutable().assign(x.value());
  Keep(std::move(layout));
}

// What goes on from one element to the next along a dim, whose padding comes last.
void SizePadding::Along(Operation* op, int64_t dim, Tensor fill) {
  Layout layout = Of(op->getOperand(0));
  Tensor x = Straight(Same(op->getOperand(0)), layout, dim);
  layout[dim] = PlainDim(layout[dim].size);
  if (fill) x = pad_.Fill(x, layout, {dim}, fill);
  op->setOperand(0, x.value());
  for (unsigned r = 0; r < op->getNumResults(); ++r) Keep(layout, r);
}

}  // namespace tpu::stablehlo

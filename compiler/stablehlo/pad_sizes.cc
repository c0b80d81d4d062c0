// The rules, one a primitive: how the result lies if the operands lie so, and what must be masked or moved for that.
#include "compiler/stablehlo/pad_sizes.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/stablehlo/pad_values.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/TypeSwitch.h"

namespace tpu::stablehlo {
namespace {

using ir::Emitter;
using ir::Tensor;
using mlir::Operation;
using mlir::Value;

class SizePadding {
 public:
  SizePadding(llvm::ArrayRef<mlir::func::FuncOp> functions, absl::Span<const SizePoint> points)
      : functions_(functions), pad_(functions.back(), points) {}

  absl::Status Run();

 private:
  using AtPoints = llvm::SmallVector<Operation*, 4>;  // one operation, in each function
  template <typename Op>
  Numbers Each(llvm::function_ref<int64_t(Op)> of) const {
    Numbers numbers;
    for (Operation* op : at_) numbers.push_back(of(mlir::cast<Op>(op)));
    return numbers;
  }

  // Whether the functions are one but for sizes, which are largest in the last.
  bool Matches(const AtPoints& at);
  bool Holds(Value largest, Value value);
  Numbers SizeOf(unsigned result, int64_t dim) const;
  llvm::SmallVector<Numbers> SizesOf(unsigned result) const;
  Layout Plain(unsigned result = 0) const;

  const Layout& Of(Value v) const { return layouts_.find(v)->second; }
  Emitter& e() { return pad_.e(); }
  Tensor Zero(DType dtype) { return e().Constant(dtype, 0); }
  Tensor Same(Value x) { return pad_.e().Wrap(x); }
  Tensor Moved(Tensor x, Layout& layout, int64_t dim, const OpenDim& to);
  Tensor Straight(Tensor x, Layout& layout, int64_t dim) { return Moved(x, layout, dim, PlainDim(layout[dim].size)); }
  // Gives both one way to lie along these dims.
  void Agree(Tensor& a, Layout& a_layout, int64_t a_dim, Tensor& b, Layout& b_layout, int64_t b_dim);
  // The result of the operation at hand: as it is, or another value in its place.
  void Keep(Layout layout, unsigned result = 0) { layouts_[here_->getResult(result)] = std::move(layout); }
  void Replace(Tensor value, Layout layout);
  void Refuse(const std::string& why);

  void Pad();  // the operation at hand
  void Constant(ir::ConstantOp op);
  void Elementwise();
  void ReshapeTo(ir::ReshapeOp op);
  void Broadcast(ir::BroadcastOp op);
  void Slice(ir::SliceOp op);
  void UpdateSlice(ir::UpdateSliceOp op);
  void PadOut(ir::PadOp op);
  void Concat(ir::ConcatOp op);
  void Reverse(ir::ReverseOp op);
  void Bitcast(ir::BitcastOp op);
  void Reduce(ir::ReduceOp op);
  void ArgReduce(ir::ArgReduceOp op);
  void Dot(ir::DotOp op);
  void Conv(ir::ConvOp op);
  void WindowReduce(ir::WindowReduceOp op);
  void Along(Operation* op, int64_t dim, Tensor fill);
  void RandomBits(ir::RandomBitsOp op);
  Tensor Indices(Value indices, const Numbers& size, int64_t out_of_range);
  Tensor InRange(Tensor indices, const Layout& layout);
  void Take(ir::TakeOp op);
  void TakeAlong(ir::TakeAlongOp op);
  template <typename Op>
  void Scatter(Op op, bool rows);
  void SumTaken(ir::SumTakenOp op);
  void Return();

  Tensor Identity(ir::ReduceKind kind, DType dtype);

  const llvm::ArrayRef<mlir::func::FuncOp> functions_;
  PadValues pad_;
  llvm::DenseMap<Value, Layout> layouts_;
  llvm::SmallVector<llvm::DenseMap<Value, unsigned>, 4> numbered_;  // by function: values in order
  AtPoints at_;
  Operation* here_ = nullptr;  // at the largest
};

absl::Status SizePadding::Run() {
  mlir::func::FuncOp least = functions_.front(), largest = functions_.back();
  numbered_.resize(functions_.size());
  for (unsigned a = 0; a < least.getNumArguments(); ++a) {
    Layout layout(ir::TensorTypeOf(least.getArgument(a)).getRank());
    for (auto [p, f] : llvm::enumerate(functions_)) {
      mlir::Value argument = mlir::func::FuncOp(f).getArgument(a);
      if (!Holds(largest.getArgument(a), argument)) return pad_.status();
      numbered_[p].try_emplace(argument, a);
      for (auto [d, dim] : llvm::enumerate(layout)) dim.size.push_back(ir::ShapeOf(argument)[d]);
    }
    for (OpenDim& dim : layout) dim = PlainDim(dim.size);
    layouts_[largest.getArgument(a)] = std::move(layout);
  }
  std::vector<AtPoints> ops;
  for (auto [p, f] : llvm::enumerate(functions_)) {
    size_t count = 0;
    for (Operation& op : mlir::func::FuncOp(f).getBody().front()) {
      if (p == 0) ops.emplace_back();
      if (count < ops.size()) ops[count].push_back(&op);
      ++count;
    }
    if (count != ops.size()) return absl::FailedPreconditionError(absl::StrCat(ops.size(), " and ", count, " primitives"));
  }
  for (const AtPoints& at : ops) {
    if (!Matches(at)) return pad_.status();
  }
  for (const AtPoints& at : ops) {
    at_ = at;
    here_ = at.back();
    pad_.Before(here_);
    Pad();
    if (!pad_.status().ok()) break;
  }
  return pad_.status();
}

bool SizePadding::Matches(const AtPoints& at) {
  const bool has_sizes = mlir::isa<ir::ConstantOp, ir::SliceOp, ir::UpdateSliceOp, ir::PadOp>(at.back());
  for (size_t p = 0; p < at.size(); ++p) {
    Operation *op = at[p], *first = at.front();
    bool same = op->getName() == first->getName() && op->getNumOperands() == first->getNumOperands() &&
                op->getNumResults() == first->getNumResults() &&
                (has_sizes || op->getAttrDictionary() == first->getAttrDictionary());
    for (unsigned i = 0; same && i < op->getNumOperands(); ++i) {
      same = numbered_[p].lookup(op->getOperand(i)) == numbered_[0].lookup(first->getOperand(i));
    }
    for (unsigned r = 0; same && r < op->getNumResults(); ++r) {
      const auto type = ir::TensorTypeOf(op->getResult(r)), other = ir::TensorTypeOf(first->getResult(r));
      same = type.getElementType() == other.getElementType() && type.getRank() == other.getRank();
    }
    if (!same) {
      Refuse(absl::StrCat("differs from ", first->getName().getStringRef().str(), " at the least size"));
      return false;
    }
    for (const auto& [largest, result] : llvm::zip(at.back()->getResults(), op->getResults())) {
      if (!Holds(largest, result)) return false;
      const auto next = static_cast<unsigned>(numbered_[p].size());
      numbered_[p].try_emplace(result, next);
    }
  }
  return true;
}

bool SizePadding::Holds(Value largest, Value value) {
  for (const auto& [most, size] : llvm::zip(ir::ShapeOf(largest), ir::ShapeOf(value))) {
    if (size <= most) continue;
    Refuse("a dim becomes smaller as the sizes grow");
    return false;
  }
  return true;
}

void SizePadding::Refuse(const std::string& why) {
  pad_.Refuse(here_ == nullptr ? why : absl::StrCat(here_->getName().getStringRef().str(), ": ", why));
}

Numbers SizePadding::SizeOf(unsigned result, int64_t dim) const {
  Numbers size;
  for (Operation* op : at_) size.push_back(ir::ShapeOf(op->getResult(result))[dim]);
  return size;
}

llvm::SmallVector<Numbers> SizePadding::SizesOf(unsigned result) const {
  llvm::SmallVector<Numbers> sizes;
  for (int64_t d = 0; d < ir::TensorTypeOf(here_->getResult(result)).getRank(); ++d) sizes.push_back(SizeOf(result, d));
  return sizes;
}

Layout SizePadding::Plain(unsigned result) const {
  Layout layout;
  for (const Numbers& size : SizesOf(result)) layout.push_back(PlainDim(size));
  return layout;
}

Tensor SizePadding::Moved(Tensor x, Layout& layout, int64_t dim, const OpenDim& to) {
  OpenDim& from = layout[dim];
  if (from == to || from.alike) return x;
  if (from.open()) x = pad_.Move(x, dim, from.factors, to.factors);
  from = to;
  return x;
}

void SizePadding::Agree(Tensor& a, Layout& a_layout, int64_t a_dim, Tensor& b, Layout& b_layout, int64_t b_dim) {
  if (a_layout[a_dim].alike) {
    a_layout[a_dim] = b_layout[b_dim];
  } else if (b_layout[b_dim].alike) {
    b_layout[b_dim] = a_layout[a_dim];
  } else {
    b = Moved(b, b_layout, b_dim, a_layout[a_dim]);
  }
}

void SizePadding::Replace(Tensor value, Layout layout) {
  here_->getResult(0).replaceAllUsesWith(value.value());
  layouts_[value.value()] = std::move(layout);
}

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

void SizePadding::Pad() {
  llvm::TypeSwitch<Operation*>(here_)
      .Case<ir::ConstantOp>([&](auto op) { Constant(op); })
      .Case<ir::IotaOp>([&](ir::IotaOp op) {
        Layout layout;
        for (const Numbers& size : SizesOf(0)) layout.push_back(AlikeDim(size));
        layout[op.getDim()] = PlainDim(layout[op.getDim()].size);
        Keep(std::move(layout));
      })
      .Case<ir::ReshapeOp>([&](auto op) { ReshapeTo(op); })
      .Case<ir::TransposeOp>([&](ir::TransposeOp op) {
        Layout layout;
        for (const int64_t d : op.getPermutation()) layout.push_back(Of(op.getX())[d]);
        Keep(std::move(layout));
      })
      .Case<ir::BroadcastOp>([&](auto op) { Broadcast(op); })
      .Case<ir::SliceOp>([&](auto op) { Slice(op); })
      .Case<ir::UpdateSliceOp>([&](auto op) { UpdateSlice(op); })
      .Case<ir::PadOp>([&](auto op) { PadOut(op); })
      .Case<ir::ConcatOp>([&](auto op) { Concat(op); })
      .Case<ir::ReverseOp>([&](auto op) { Reverse(op); })
      .Case<ir::BitcastOp>([&](auto op) { Bitcast(op); })
      .Case<ir::ReduceOp>([&](auto op) { Reduce(op); })
      .Case<ir::ArgReduceOp>([&](auto op) { ArgReduce(op); })
      .Case<ir::DotOp>([&](auto op) { Dot(op); })
      .Case<ir::ConvOp>([&](auto op) { Conv(op); })
      .Case<ir::WindowReduceOp>([&](auto op) { WindowReduce(op); })
      .Case<ir::ScanOp>([&](ir::ScanOp op) { Along(op, static_cast<int64_t>(op.getDim()), Tensor()); })
      .Case<ir::SortOp>([&](ir::SortOp op) {
        // Stable: what is there stays before padding that is its equal.
        const DType dtype = Same(op.getX()).dtype();
        const bool down = op.getDescending();
        const double nan = std::numeric_limits<double>::quiet_NaN();
        Along(op, static_cast<int64_t>(op.getDim()),
              down ? e().Lowest(dtype) : IsFloat(dtype) ? e().Constant(dtype, nan) : e().Highest(dtype));
      })
      .Case<ir::RandomBitsOp>([&](auto op) { RandomBits(op); })
      .Case<ir::TakeOp>([&](auto op) { Take(op); })
      .Case<ir::TakeAlongOp>([&](auto op) { TakeAlong(op); })
      .Case<ir::ScatterOp>([&](auto op) { Scatter(op, false); })
      .Case<ir::ScatterRowsOp>([&](auto op) { Scatter(op, true); })
      .Case<ir::SumTakenOp>([&](auto op) { SumTaken(op); })
      .Case<mlir::func::ReturnOp>([&](auto) { Return(); })
      .Default([&](Operation* op) {
        if (op->hasTrait<mlir::OpTrait::Elementwise>()) {
          Elementwise();
        } else {
          Refuse("has no padded form");
        }
      });
}

// A number that follows the sizes, or one by such a number (of a mean), is computed.
void SizePadding::Constant(ir::ConstantOp op) {
  Layout layout;
  for (const Numbers& size : SizesOf(0)) layout.push_back(AlikeDim(size));
  llvm::SmallVector<mlir::DenseElementsAttr, 4> values;
  for (Operation* o : at_) values.push_back(mlir::dyn_cast<mlir::DenseElementsAttr>(mlir::cast<ir::ConstantOp>(o).getValue()));
  bool splat = true, equal = true;
  for (mlir::DenseElementsAttr value : values) {
    if (!value) return Refuse("not dense");
    splat &= value.isSplat();
    equal &= value == values.front();
  }
  if (!splat) {
    if (!equal) return Refuse("elements differ");
    return Keep(Plain());
  }
  const mlir::Type element = values.front().getElementType();
  if (mlir::isa<mlir::ComplexType>(element)) {
    equal = llvm::all_of(values, [&](auto v) { return v.template getSplatValue<mlir::Attribute>() == values.front().template getSplatValue<mlir::Attribute>(); });
    return equal ? Keep(std::move(layout)) : Refuse("complex numbers that follow sizes");
  }
  const DType dtype = ir::DTypeOf(element);
  Numbers whole, inverse;
  bool is_whole = true, is_inverse = true;
  equal = true;
  for (mlir::DenseElementsAttr value : values) {
    equal &= value.getSplatValue<mlir::Attribute>() == values.front().getSplatValue<mlir::Attribute>();
    if (auto integer = mlir::dyn_cast<mlir::IntegerAttr>(value.getSplatValue<mlir::Attribute>())) {
      whole.push_back(IsSigned(dtype) ? integer.getValue().getSExtValue() : static_cast<int64_t>(integer.getValue().getZExtValue()));
      is_inverse = false;
      continue;
    }
    llvm::APFloat number = value.getSplatValue<llvm::APFloat>();
    const llvm::APFloat given = number;
    bool lossy = false;
    number.convert(llvm::APFloat::IEEEdouble(), llvm::APFloat::rmNearestTiesToEven, &lossy);
    const double d = number.convertToDouble();
    is_whole &= std::abs(d) < 9e15 && d == std::floor(d);
    whole.push_back(is_whole ? static_cast<int64_t>(d) : 0);
    const double by = std::round(1 / d);
    llvm::APFloat again(1 / by);
    is_inverse &= std::abs(by) < 9e15 && by != 0;
    if (is_inverse) again.convert(given.getSemantics(), llvm::APFloat::rmNearestTiesToEven, &lossy);
    is_inverse = is_inverse && again.bitwiseIsEqual(given);
    inverse.push_back(is_inverse ? static_cast<int64_t>(by) : 0);
  }
  if (equal) return Keep(std::move(layout));
  if (!is_whole && !is_inverse) return Refuse("a number follows the sizes in another way");
  Tensor number = pad_.Number(is_whole ? whole : inverse);
  if (is_whole) {
    number = ir::Convert(number, dtype);
  } else {
    number = ir::Convert(1.0 / ir::Convert(number, DType::kFloat64), dtype);
  }
  Replace(ir::BroadcastTo(number, Same(op.getResult()).dims()), std::move(layout));
}

void SizePadding::Elementwise() {
  const unsigned count = here_->getNumOperands();
  Layout layout = Of(here_->getOperand(0));
  for (unsigned i = 1; i < count; ++i) {
    const Layout& other = Of(here_->getOperand(i));
    for (size_t d = 0; d < layout.size(); ++d) {
      if (layout[d].alike) layout[d] = other[d];
    }
  }
  for (unsigned i = 0; i < count; ++i) {
    Tensor x = Same(here_->getOperand(i));
    Layout lies = Of(x.value());
    for (size_t d = 0; d < layout.size(); ++d) x = Moved(x, lies, static_cast<int64_t>(d), layout[d]);
    here_->setOperand(i, x.value());
  }
  Keep(std::move(layout));
}

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
    const Tensor place = e().Iota(DType::kInt64, {base.size(d)}, 0) - pad_.Number(start);
    src = pad_.TakeWithin(src, d, place);
    const Tensor inside = ir::Ge(place, 0.0) & ir::Lt(place, pad_.Number(layout[d].size));
    const Tensor along = ir::BroadcastAlong(inside, base.dims(), {d});
    written = written ? written & along : along;
  }
  Replace(ir::Select(written, src, base), std::move(into));
}

void SizePadding::PadOut(ir::PadOp op) {
  Tensor x = Same(op.getX()), value = Same(op.getValue()), outside;
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
      const Tensor place = e().Iota(DType::kInt64, {size.back()}, 0) - pad_.Number(before);
      const Tensor inside = ir::Ge(place, 0.0) & ir::Lt(place, pad_.Number(layout[d].size));
      x = pad_.TakeWithin(x, d, place);
      x = ir::Select(ir::BroadcastAlong(inside, x.dims(), {d}), x, ir::BroadcastTo(value, x.dims()));
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
  Layout layout;
  for (Value input : op.getInputs()) {
    const Layout& other = Of(input);
    if (layout.empty()) layout = other;
    for (size_t d = 0; d < layout.size(); ++d) {
      if (layout[d].alike) layout[d] = other[d];
    }
  }
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

void SizePadding::Return() {
  for (unsigned i = 0; i < here_->getNumOperands(); ++i) {
    Tensor x = Same(here_->getOperand(i));
    Layout layout = Of(x.value());
    for (int64_t d = 0; d < x.rank(); ++d) x = Straight(x, layout, d);
    here_->setOperand(i, x.value());
  }
}

}  // namespace

absl::Status PadSizes(llvm::ArrayRef<mlir::func::FuncOp> functions, absl::Span<const SizePoint> points) {
  return SizePadding(functions, points).Run();
}

}  // namespace tpu::stablehlo

// Through the function, in lockstep at all points; constants and elementwise primitives.
#include "compiler/stablehlo/pad_sizes.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/stablehlo/size_padding.h"
#include "llvm/ADT/TypeSwitch.h"

namespace tpu::stablehlo {
namespace {

constexpr double kMostWhole = 9e15;  // that f64 tells from its neighbours

std::optional<int64_t> WholeOf(mlir::Attribute number, bool is_signed) {
  if (auto integer = mlir::dyn_cast<mlir::IntegerAttr>(number)) {
    return is_signed ? integer.getValue().getSExtValue() : static_cast<int64_t>(integer.getValue().getZExtValue());
  }
  auto real = mlir::dyn_cast<mlir::FloatAttr>(number);
  const double value = real ? real.getValueAsDouble() : NAN;
  if (!(std::abs(value) < kMostWhole) || value != std::floor(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

// n, of what is 1 / n as exactly as its type says it.
std::optional<int64_t> InverseOf(mlir::Attribute number) {
  auto real = mlir::dyn_cast<mlir::FloatAttr>(number);
  const double n = real ? std::round(1 / real.getValueAsDouble()) : NAN;
  if (!(std::abs(n) < kMostWhole) || n == 0) return std::nullopt;
  llvm::APFloat again(1 / n);
  bool lossy = false;
  again.convert(real.getValue().getSemantics(), llvm::APFloat::rmNearestTiesToEven, &lossy);
  return again.bitwiseIsEqual(real.getValue()) ? std::optional<int64_t>(static_cast<int64_t>(n)) : std::nullopt;
}

}  // namespace

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
    if (count != ops.size()) {
      return absl::FailedPreconditionError(absl::StrCat(ops.size(), " and ", count, " primitives"));
    }
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

Layout SizePadding::Common() const {
  Layout layout = Of(here_->getOperand(0));
  for (Value operand : here_->getOperands()) {
    for (const auto& [dim, other] : llvm::zip(layout, Of(operand))) {
      if (dim.alike) dim = other;
    }
  }
  return layout;
}

void SizePadding::Replace(Tensor value, Layout layout) {
  here_->getResult(0).replaceAllUsesWith(value.value());
  layouts_[value.value()] = std::move(layout);
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
              down             ? e().Lowest(dtype)
              : IsFloat(dtype) ? e().Constant(dtype, nan)
                               : e().Highest(dtype));
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
  llvm::SmallVector<mlir::DenseElementsAttr, 4> values;
  for (Operation* o : at_) {
    values.push_back(mlir::dyn_cast<mlir::DenseElementsAttr>(mlir::cast<ir::ConstantOp>(o).getValue()));
    if (!values.back()) return Refuse("not dense");
  }
  if (!llvm::all_of(values, [](mlir::DenseElementsAttr value) { return value.isSplat(); })) {
    return llvm::all_equal(values) ? Keep(Plain()) : Refuse("elements differ");
  }
  Layout layout;
  for (const Numbers& size : SizesOf(0)) layout.push_back(AlikeDim(size));
  const DType dtype = Same(op.getResult()).dtype();
  llvm::SmallVector<mlir::Attribute, 4> numbers;
  Numbers whole, inverse;
  for (mlir::DenseElementsAttr value : values) {
    numbers.push_back(value.getSplatValue<mlir::Attribute>());
    if (const auto number = WholeOf(numbers.back(), IsSigned(dtype))) whole.push_back(*number);
    if (const auto number = InverseOf(numbers.back())) inverse.push_back(*number);
  }
  if (llvm::all_equal(numbers)) return Keep(std::move(layout));
  Tensor number;
  if (whole.size() == at_.size()) {
    number = ir::Convert(pad_.Number(whole), dtype);
  } else if (inverse.size() == at_.size()) {
    number = ir::Convert(1.0 / ir::Convert(pad_.Number(inverse), DType::kFloat64), dtype);
  } else {
    return Refuse("a number follows the sizes in another way");
  }
  Replace(ir::BroadcastTo(number, Same(op.getResult()).dims()), std::move(layout));
}

void SizePadding::Elementwise() {
  Layout layout = Common();
  for (unsigned i = 0; i < here_->getNumOperands(); ++i) {
    Tensor x = Same(here_->getOperand(i));
    Layout lies = Of(x.value());
    for (size_t d = 0; d < layout.size(); ++d) x = Moved(x, lies, static_cast<int64_t>(d), layout[d]);
    here_->setOperand(i, x.value());
  }
  Keep(std::move(layout));
}

void SizePadding::Return() {
  for (unsigned i = 0; i < here_->getNumOperands(); ++i) {
    Tensor x = Same(here_->getOperand(i));
    Layout layout = Of(x.value());
    for (int64_t d = 0; d < x.rank(); ++d) x = Straight(x, layout, d);
    here_->setOperand(i, x.value());
  }
}

absl::Status PadSizes(llvm::ArrayRef<mlir::func::FuncOp> functions, absl::Span<const SizePoint> points) {
  return SizePadding(functions, points).Run();
}

}  // namespace tpu::stablehlo

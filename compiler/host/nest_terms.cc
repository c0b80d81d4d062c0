// The plain parts of loop nests: index arithmetic, which operations can be in one, and what one costs.
#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "compiler/host/loop_nest.h"
#include "compiler/ir/dialect.h"
#include "compiler/ir/types.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"

namespace tpu::host {

using ir::CountOf, ir::ElementOf;

Expr Term(int symbol, int64_t size) {
  Expr e;
  if (size > 1) e.terms.push_back({symbol, 1});
  return e;
}

Expr operator+(const Expr& a, const Expr& b) {
  Expr sum;
  sum.constant = a.constant + b.constant;
  size_t i = 0, j = 0;
  while (i < a.terms.size() || j < b.terms.size()) {
    if (j == b.terms.size() || (i < a.terms.size() && a.terms[i].first < b.terms[j].first)) {
      sum.terms.push_back(a.terms[i++]);
    } else if (i == a.terms.size() || b.terms[j].first < a.terms[i].first) {
      sum.terms.push_back(b.terms[j++]);
    } else {
      int64_t c = a.terms[i].second + b.terms[j].second;
      if (c != 0) sum.terms.push_back({a.terms[i].first, c});
      ++i, ++j;
    }
  }
  return sum;
}

Expr operator*(const Expr& a, int64_t factor) {
  if (factor == 0) return Expr();
  Expr product = a;
  product.constant *= factor;
  for (auto& [symbol, c] : product.terms) c *= factor;
  return product;
}

void Dependence::Include(const Dependence& other) {
  loops |= other.loops;
  phase = std::max(phase, other.phase);
  reduced |= other.reduced;
  checked |= other.checked;
}

int64_t LoopNest::kept_count() const {
  int64_t n = 1;
  for (const Loop& loop : loops) n *= loop.reduced ? 1 : loop.size;
  return n;
}
int64_t LoopNest::reduced_count() const {
  int64_t n = 1;
  for (const Loop& loop : loops) n *= loop.reduced ? loop.size : 1;
  return n;
}
Expr LoopNest::FullIndex() const {
  Expr e;
  int64_t stride = 1;
  for (size_t i = loops.size(); i-- > 0;) {
    e = e + Term(static_cast<int>(i), loops[i].size) * stride;
    stride *= loops[i].size;
  }
  return e;
}
Expr LoopNest::RowIndex() const {
  Expr e;
  int64_t stride = 1;
  for (size_t i = loops.size(); i-- > 0;) {
    if (loops[i].reduced) continue;
    e = e + Term(static_cast<int>(i), loops[i].size) * stride;
    stride *= loops[i].size;
  }
  return e;
}

double LoopNest::Cost() const {
  double total = 0;
  for (const NestNode& node : nodes) {
    double count = node.share;
    for (size_t i = 0; i < loops.size(); ++i) {
      bool runs = IsVector(node.loops) ? !loops[i].reduced || node.reduced : (node.loops >> i) & 1;
      if (runs) count *= static_cast<double>(loops[i].size);
    }
    double each = 0.05;
    if (node.kind == NestNode::Kind::kConstant || node.kind == NestNode::Kind::kInRange) each = 0;
    if (node.kind == NestNode::Kind::kRandom) each = 2;
    if (node.kind == NestNode::Kind::kOp && IsHeavyOp(node.op)) each = 0.6;
    if (node.kind == NestNode::Kind::kLoad) {
      each = 0.02;
      const int last = static_cast<int>(lane_loop());
      for (auto [symbol, c] : node.index.terms) {
        if (IsVector(symbols[symbol].loops) && (symbol != last || std::abs(c) > 2)) each = 0.8;  // element by element
      }
    }
    total += each * count;
  }
  auto bytes = [](mlir::Type type) {
    return (std::max(8u, type.isIntOrFloat() ? type.getIntOrFloatBitWidth() : 64) + 7) / 8;
  };
  for (mlir::Value input : inputs) {
    total += 0.1 * static_cast<double>(bytes(ElementOf(input))) *
             static_cast<double>(std::min(CountOf(input), full_count()));
  }
  for (const NestOutput& output : outputs) {
    total += 0.1 * static_cast<double>(bytes(nodes[output.node].type)) *
             static_cast<double>(output.full ? full_count() : kept_count());
  }
  return total;
}

double LoopNest::WrittenNodes() const {
  std::vector<double> of_choice(nodes.size(), 0);
  std::vector<size_t> seen(nodes.size(), 0);
  size_t scope = 0;
  const auto written = [&](auto&& self, int id) -> double {
    if (std::exchange(seen[id], scope) == scope) return 0;
    if (nodes[id].kind == NestNode::Kind::kChoose) return of_choice[id];
    double count = 1;
    for (int operand : nodes[id].operands) count += self(self, operand);
    return count;
  };
  for (size_t i = 0; i < nodes.size(); ++i) {  // operands come first
    if (nodes[i].kind != NestNode::Kind::kChoose) continue;
    for (int part : nodes[i].operands) {
      ++scope;
      of_choice[i] += 1 + written(written, part);
    }
  }
  ++scope;
  double count = 0;
  for (const NestOutput& output : outputs) count += written(written, output.node);
  return count;
}

mlir::DenseElementsAttr KnownElements(mlir::Value value) {
  if (auto argument = mlir::dyn_cast<mlir::BlockArgument>(value)) {
    auto fusion = mlir::dyn_cast<ir::FusionOp>(argument.getOwner()->getParentOp());
    if (!fusion) return nullptr;
    value = fusion.getOperands()[argument.getArgNumber()];
  }
  auto constant = value.getDefiningOp<ir::ConstantOp>();
  return constant ? mlir::dyn_cast<mlir::DenseElementsAttr>(constant.getValue()) : nullptr;
}

bool IsFreeOp(mlir::Operation* op) {
  if (mlir::isa<ir::ReshapeOp, ir::TransposeOp, ir::BroadcastOp, ir::SliceOp, ir::ReverseOp, ir::IotaOp>(op))
    return true;
  auto constant = mlir::dyn_cast<ir::ConstantOp>(op);
  return constant && mlir::cast<mlir::ElementsAttr>(op->getAttr("value")).isSplat();
}

bool IsNestOp(mlir::Operation* op) {
  auto complex = [](mlir::Type type) {
    auto tensor = mlir::dyn_cast<mlir::RankedTensorType>(type);
    return tensor && !tensor.getElementType().isIntOrFloat();
  };
  // Kernels write bools as 0 and 1: other bytes stay what they are where nothing is written.
  auto written_otherwise = [&](mlir::Type type) {
    return complex(type) || mlir::cast<mlir::RankedTensorType>(type).getElementType().isInteger(1);
  };
  if (IsFreeOp(op)) return true;
  if (auto bitcast = mlir::dyn_cast<ir::BitcastOp>(op)) {
    return CountOf(bitcast.getX()) == CountOf(bitcast.getResult()) &&
           !llvm::any_of(op->getOperandTypes(), written_otherwise) &&
           !llvm::any_of(op->getResultTypes(), written_otherwise);
  }
  if (auto update = mlir::dyn_cast<ir::UpdateSliceOp>(op)) return !update.getInPlace();
  if (mlir::isa<ir::PadOp, ir::ConcatOp, ir::TakeOp, ir::TakeAlongOp, ir::RandomBitsOp>(op)) {
    return true;
  }
  bool computes = op->hasTrait<mlir::OpTrait::Elementwise>() || mlir::isa<ir::ReduceOp, ir::ArgReduceOp>(op);
  if (!computes) return false;
  if (mlir::isa<ir::SelectOp, ir::ConvertOp, ir::RealOp, ir::ImaginaryOp, ir::ComplexOp>(op)) return true;
  return !llvm::any_of(op->getOperandTypes(), complex) && !llvm::any_of(op->getResultTypes(), complex);
}

bool IsHeavyOp(mlir::Operation* op) {
  return mlir::isa<ir::ExpOp, ir::Exp2Op, ir::Expm1Op, ir::LogOp, ir::Log1pOp, ir::Log2Op, ir::Log10Op, ir::SinOp,
                   ir::CosOp, ir::TanOp, ir::AsinOp, ir::AcosOp, ir::AtanOp, ir::SinhOp, ir::CoshOp, ir::TanhOp,
                   ir::AsinhOp, ir::AcoshOp, ir::AtanhOp, ir::ErfOp, ir::LogisticOp, ir::PowOp, ir::Atan2Op, ir::RemOp>(
      op);
}

bool ChecksOperands(mlir::Operation* op) {
  if (mlir::isa<ir::DivOp, ir::RemOp>(op)) return ElementOf(op->getResult(0)).isInteger();
  return mlir::isa<ir::RequireOp>(op);
}

}  // namespace tpu::host

#include "compiler/ir/windows.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "mlir/IR/Builders.h"

namespace tpu::ir {
namespace {

constexpr llvm::StringLiteral kWindows = "tpu.windows";  // a kind, and a number that is never zero, of each decision
constexpr int64_t kKinds = 3;                            // for each dim

llvm::ArrayRef<int64_t> RecordOf(mlir::func::FuncOp function) {
  return function->getAttrOfType<mlir::DenseI64ArrayAttr>(kWindows).asArrayRef();
}

void Record(mlir::Operation* op, int64_t kind, int64_t number) {
  auto function = op->getParentOfType<mlir::func::FuncOp>();
  if (!function || !function->hasAttr(kWindows)) return;
  llvm::SmallVector<int64_t> all(RecordOf(function));
  all.append({kind, number});
  function->setAttr(kWindows, mlir::Builder(op->getContext()).getDenseI64ArrayAttr(all));
}

// Between points at all corners it is nowhere beyond what it is there.
bool IsLeastAtACorner(const Polynomial& p) {
  bool squares = false, rises = false, falls = false;
  for (size_t term = 1; term < p.terms.size(); ++term) {
    if (p.terms[term] == 0) continue;
    squares |= term % Polynomial::kPowers == 2 || term / Polynomial::kPowers == 2;
    (p.terms[term] > 0 ? rises : falls) = true;
  }
  return !squares || !rises || !falls;
}

}  // namespace

void KeepWindowsOf(mlir::func::FuncOp function) {
  function->setAttr(kWindows, mlir::Builder(function.getContext()).getDenseI64ArrayAttr({}));
}

void RecordApart(mlir::Operation* op, int64_t dim, int64_t distance) {
  Record(op, dim * kKinds, distance < 0 ? distance : distance + 1);
}

void RecordInside(mlir::Operation* op, int64_t dim, int64_t from_begin, int64_t from_end) {
  Record(op, dim * kKinds + 1, from_begin + 1);
  Record(op, dim * kKinds + 2, from_end + 1);
}

absl::Status CheckWindows(absl::Span<const mlir::func::FuncOp> functions, absl::Span<const SizePoint> points) {
  const auto meet = [] {
    return absl::FailedPreconditionError("windows that are written and read meet at some sizes");
  };
  std::vector<llvm::ArrayRef<int64_t>> records;
  for (mlir::func::FuncOp function : functions) {
    records.push_back(RecordOf(function));
    if (records.back().size() != records.front().size()) return meet();
  }
  for (size_t i = 0; i < records.front().size(); i += 2) {
    std::vector<int64_t> numbers;
    for (llvm::ArrayRef<int64_t> record : records) {
      numbers.push_back(record[i + 1]);
      if (record[i] != records.front()[i] || (numbers.back() < 0) != (numbers.front() < 0)) return meet();
    }
    const std::optional<Polynomial> distance = Polynomial::Through(points, numbers);
    if (!distance || !IsLeastAtACorner(*distance)) return meet();
  }
  return absl::OkStatus();
}

}  // namespace tpu::ir

// StableHLO text, one operation at a time: names values, prints types and attributes, nests regions.
//
// Used by the emitter (emit.cc and its families). Operations are written in MLIR's generic form, which every reader of
// StableHLO since 1.0 takes. A Val is a handle; the Writer owns the text. One thread, a module's lifetime.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/ir/types.h"

namespace tpu::stablehlo {

using Dims = llvm::SmallVector<int64_t>;
using Ints = llvm::ArrayRef<int64_t>;

// A value of the module being written: its name, and its type (opaque elements are unsigned integers of their size).
struct Val {
  std::string name;
  mlir::RankedTensorType type;

  mlir::Type element() const { return type.getElementType(); }
  Ints dims() const { return type.getShape(); }
  int64_t rank() const { return type.getRank(); }
  bool is_float() const { return mlir::isa<mlir::FloatType>(element()); }
  bool is_complex() const { return mlir::isa<mlir::ComplexType>(element()); }
  bool is_bool() const { return element().isInteger(1); }
  bool is_unsigned() const { return is_bool() || element().isUnsignedInteger(); }
};

mlir::RankedTensorType WithDims(mlir::RankedTensorType type, Ints dims);
mlir::RankedTensorType WithElement(mlir::RankedTensorType type, mlir::Type element);
// The type that stands for `type` in StableHLO.
mlir::RankedTensorType Stored(mlir::RankedTensorType type);
std::string Text(mlir::Type type);
std::string Text(mlir::Attribute attribute);
std::string List(Ints values);   // "[1, 2]"
std::string Array(Ints values);  // "array<i64: 1, 2>"

class Writer {
 public:
  // `%n = "stablehlo.op"(operands) (regions) {attributes} : types`.
  Val Op(const std::string& op, llvm::ArrayRef<Val> operands, mlir::RankedTensorType result,
         const std::string& attributes = "", const std::string& regions = "");
  llvm::SmallVector<Val> Ops(const std::string& op, llvm::ArrayRef<Val> operands,
                             llvm::ArrayRef<mlir::RankedTensorType> results, const std::string& attributes = "",
                             const std::string& regions = "");
  // A region whose block takes scalars of `types` and returns what `body` gives for them.
  std::string Region(llvm::ArrayRef<mlir::Type> types,
                     const std::function<llvm::SmallVector<Val>(llvm::ArrayRef<Val>)>& body);

  Val Constant(mlir::ElementsAttr value);
  Val Splat(mlir::RankedTensorType type, double value);
  Val Lowest(mlir::Type element);   // rank 0
  Val Highest(mlir::Type element);  // rank 0
  Val Iota(mlir::RankedTensorType type, int64_t dim);

  Val Add(Val a, Val b) { return Op("add", {a, b}, a.type); }
  Val And(Val a, Val b) { return Op("and", {a, b}, a.type); }
  Val Or(Val a, Val b) { return Op("or", {a, b}, a.type); }
  Val Not(Val a) { return Op("not", {a}, a.type); }
  Val Compare(const std::string& direction, Val a, Val b);
  Val IsNan(Val a) { return Compare("NE", a, a); }
  Val Select(Val pred, Val a, Val b) { return Op("select", {pred, a, b}, a.type); }
  Val Convert(Val x, mlir::Type element);
  Val Reshape(Val x, Ints dims);
  Val Broadcast(Val x, Ints dims, Ints along);
  Val Slice(Val x, Ints start, Ints limit, Ints stride);
  Val Pad(Val x, Val value, Ints low, Ints high, Ints interior);
  Val Concat(llvm::ArrayRef<Val> inputs, int64_t dim, mlir::RankedTensorType result);
  // Combines along `dims` by `op`, starting from `init` (rank 0).
  Val Reduce(const std::string& op, Val x, Val init, Ints dims);

  std::string NewName();
  void Line(const std::string& text);
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
  int next_ = 0;
  int depth_ = 2;
};

}  // namespace tpu::stablehlo

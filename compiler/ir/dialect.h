// The `tpu` dialect: primitives that ATen overloads are expressed in, declared in the .td files beside this one.
//
// Used by every part of the compiler. MLIR contexts are not shared between threads that compile; ops are owned by
// their module as everywhere in MLIR.
#pragma once

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

namespace tpu {

// Attribute of a function that is compiled several times for one program: its sizes, none where only the places change
// at which windows begin.
constexpr llvm::StringLiteral kOpenSizes = "tpu.open_sizes";
inline bool HasOpenSizes(mlir::Operation* function) {
  auto sizes = function->getAttrOfType<mlir::DenseI64ArrayAttr>(kOpenSizes);
  return sizes && !sizes.empty();
}

namespace ir {

// The op renames positions only: what reads it can read its operand instead.
template <typename Op>
class ViewLike : public mlir::OpTrait::TraitBase<Op, ViewLike> {};

}  // namespace ir
}  // namespace tpu

#include "compiler/ir/dialect.h.inc"
#include "compiler/ir/enums.h.inc"
#define GET_TYPEDEF_CLASSES
#include "compiler/ir/types.h.inc"
#define GET_ATTRDEF_CLASSES
#include "compiler/ir/attributes.h.inc"
#define GET_OP_CLASSES
#include "compiler/ir/ops.h.inc"

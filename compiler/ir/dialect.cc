#include "compiler/ir/dialect.h"

#include "compiler/ir/dialect.cc.inc"
#include "compiler/ir/enums.cc.inc"
#include "llvm/ADT/TypeSwitch.h"
#include "mlir/IR/DialectImplementation.h"
#define GET_TYPEDEF_CLASSES
#include "compiler/ir/types.cc.inc"
#define GET_ATTRDEF_CLASSES
#include "compiler/ir/attributes.cc.inc"
#define GET_OP_CLASSES
#include "compiler/ir/ops.cc.inc"

namespace tpu::ir {

void TpuDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "compiler/ir/ops.cc.inc"
      >();
  addTypes<
#define GET_TYPEDEF_LIST
#include "compiler/ir/types.cc.inc"
      >();
  addAttributes<
#define GET_ATTRDEF_LIST
#include "compiler/ir/attributes.cc.inc"
      >();
}

mlir::Operation* TpuDialect::materializeConstant(mlir::OpBuilder& builder, mlir::Attribute value, mlir::Type type,
                                                 mlir::Location loc) {
  auto elements = mlir::dyn_cast<mlir::ElementsAttr>(value);
  if (!elements || elements.getType() != type) return nullptr;
  return ConstantOp::create(builder, loc, type, elements);
}

}  // namespace tpu::ir

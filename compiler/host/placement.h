// Where the bytes of values lie: shared by place_updates.cc, which marks what is written in place, and by the plan
// builder, which does it. Plain functions over operations that must stay alive; any thread.
#pragma once

#include <cstdint>

#include "compiler/ir/dialect.h"

namespace tpu::host {

// The value whose bytes v's are: through reshapes and bitcasts.
mlir::Value BytesSource(mlir::Value v);

// Where an update's elements go in its base, in elements: runs of consecutive ones, each to a place of its own.
struct Window {
  int64_t begin = 0, end = 0;  // of all that it replaces
  int64_t run = 1;
  llvm::SmallVector<int64_t> sizes, strides;  // of the runs, outermost first; none: one run
};
Window WindowOf(ir::UpdateSliceOp op);  // of elements

}  // namespace tpu::host

// Where the bytes of values lie: shared by place_updates.cc, which marks what is written in place, and by the plan
// builder, which does it. Plain functions over operations that must stay alive; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "compiler/ir/dialect.h"

namespace tpu::host {

// The value whose bytes v's are: through reshapes and bitcasts.
mlir::Value BytesSource(mlir::Value v);

// The first element of base that the update replaces, where it replaces a run of consecutive ones.
std::optional<int64_t> OffsetOf(ir::UpdateSliceOp op);

}  // namespace tpu::host

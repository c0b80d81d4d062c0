// Elementwise reduction of several ranks' elements, by type and operator: plain loops that vectorise.
//
// Called by the transports. Sums of 16-bit floats run in float and are rounded once; integers wrap around; minimum and
// maximum give NaN where there is one; sums of bool are "or", as on other devices. Any thread.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "collectives/collective.h"

namespace tpu {

// out[i] = sources[0][i] op sources[1][i] op ... in this order. `scales` (kPremulSum only): a factor a source.
// `out` may be one of the sources. The pair of type and operator has passed Check().
void Combine(DType dtype, ReduceOp op, absl::Span<const char* const> sources, absl::Span<const double> scales,
             int64_t count, char* out);

}  // namespace tpu

// A collective as StableHLO that every rank's device runs (runtime/exchange.h).
//
// Called through the backend, and by tests. What has no reduction of XLA's own (bitwise operators, minima of floats,
// which must give NaN where there is one, products of complex numbers) is gathered and folded in the order of the
// ranks.
#pragma once

#include "absl/status/statusor.h"
#include "runtime/exchange.h"

namespace tpu::stablehlo {

absl::StatusOr<Program> CompileExchange(const Exchange& exchange);

}  // namespace tpu::stablehlo

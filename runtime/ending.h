// The end of the process: what has not been computed by then fails instead, for hardly anybody is left to read it.
//
// Set by the engine at exit; asked before each launch, and within one before each of its steps. Header only; any
// thread.
#pragma once

#include <atomic>

#include "absl/status/status.h"

namespace tpu {

inline std::atomic<bool> ending{false};

inline absl::Status CheckNotEnding() {
  if (!ending.load(std::memory_order_relaxed)) return absl::OkStatus();
  return absl::CancelledError("the process ends, and this was not computed any more");
}

}  // namespace tpu

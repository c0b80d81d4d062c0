// Loops of the host device, on one process-wide TBB arena of Flags::threads threads: the only pool that computes.
//
// Used by the executable, the matrix products and large copies. Any thread; several loops may run at once.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace tpu::host {

// The caller is one of them.
int NumThreads();

// Of a thread that runs a piece of a loop: below NumThreads(), and no other's at the same time.
int ThreadNumber();

// body(begin, end) over pieces that cover [0, extent), each of at least `grain` where the extent has that much. What
// makes only one piece runs inline on the caller. The pieces depend on the extent, grain and NumThreads() alone.
void ParallelFor(int64_t extent, int64_t grain, absl::FunctionRef<void(int64_t begin, int64_t end)> body);

}  // namespace tpu::host

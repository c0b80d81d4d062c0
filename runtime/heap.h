// The C library's heap. Blocks that were freed stay in it, and in the process's memory, while others above them live: a
// program of ever new sizes frees large tensors of the CPU between the small things that each new fragment leaves, and
// would fill the machine with holes.
//
// Called by the compile pool, which has a job for every new fragment. Any thread.
#pragma once

namespace tpu {

// Gives the system back what lies in holes, if the process has grown by 1 GiB since that was last done. Other threads'
// allocations wait meanwhile (some 0.1 s a GiB).
void TrimHeapIfGrown();

}  // namespace tpu

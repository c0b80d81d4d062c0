// The threads with which ATen's CPU kernels run in parallel. OpenMP keeps a team of them for every thread that ever ran
// such a kernel, and as soon as all teams together have more threads than there are cores, libgomp's barriers put
// threads to sleep instead of letting them spin: the user's own kernels on the CPU would take 1.4 times as long for
// ever after a stream's thread has run a few.
//
// Called by stream threads, through host_kernels.cc. Any thread.
#pragma once

namespace tpu {

// Ends the calling thread's team (some 0.3 ms; 1 us if it has none); its next parallel kernel makes another. Does
// nothing with another OpenMP than GNU's, or within a parallel region.
void GiveUpHostTeam();

}  // namespace tpu

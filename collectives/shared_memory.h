// The ranks of one host as a Group: every verb in rounds over shared slots, messages through mailboxes.
//
// With P ranks, a rank's N bytes and slots of S bytes (shared memory: what a rank publishes, each other reads in
// place):
//
//   verb             algorithm                 rounds          bytes copied in and out by a rank
//   broadcast        direct                    N/S             root N in; others N out
//   scatter          direct                    P*N/S           root P*N in; others N out
//   gather           direct                    N/S             others N in; root P*N out
//   all_gather       direct                    N/S             N in, P*N out
//   all_to_all       direct, piece by piece    P*N/S           P*N in, P*N out
//   reduce_scatter   direct, piece by piece    P*N/S           P*N in, reads P*N
//   all_reduce       direct: small, or P <= 2  N/S             N in, reads P*N
//                    scatter + gather          2*N/S           N in, reads N + N/P in, N out
//   reduce           the same two, to the root
//   barrier          direct                    1               none
//   send, recv       mailbox of two chunks     N/64 KiB        N in, N out
//
// Rings, trees and recursive halving save bytes or steps on links between pairs; here every rank reads every slot at
// the speed of memory, so fewer rounds (waits) always win. Results are the same on every rank, and do not depend on
// timing. Run is for one thread at a time; messages of different peers, and in different directions, may run beside it.
#pragma once

#include <chrono>
#include <memory>

#include "collectives/collective.h"
#include "collectives/segment.h"

namespace tpu {

enum class Reduction { kAuto, kDirect, kScatterGather };  // how all_reduce and reduce are done; tests force one

std::unique_ptr<Group> MakeSharedMemoryGroup(std::shared_ptr<Segment> segment, int rank,
                                             std::chrono::milliseconds timeout, Reduction reduction = Reduction::kAuto);

}  // namespace tpu

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
//                    scatter + gather          N/S' + 1        N in, reads N + N/P in, N out
//   reduce           the same two, to the root
//   barrier          direct                    1               none
//   send, recv       mailbox of two chunks     N/64 KiB        N in, N out
//
// Scatter + gather: a round's slot holds S' = S*P/(P+1) bytes to be reduced and the reduced part of the round before.
//
// Rings, trees and recursive halving save bytes or steps on links between pairs; here every rank reads every slot at
// the speed of memory, so fewer rounds (waits) win. Measured, all_reduce in us, the median of 9 (ranks as threads on 2
// cores, bench/micro/collectives_bench.cc; recursive doubling takes log2(P) rounds of N bytes in and 2 N read):
//
//   ranks  algorithm            64 B   4 KiB  16 KiB  64 KiB  256 KiB
//   4      direct                 25      26      24      49      137
//          scatter + gather       48      52      45      50       93
//          recursive doubling     41      48      36      64      103
//   8      direct                 53      47      63     176      448
//          scatter + gather       98      89      93     108      173
//          recursive doubling    134     109     115     162      307
//
// A tree's reduce and broadcast take twice the rounds of recursive doubling; a ring takes 2*(P-1), with the bytes of
// scatter + gather. Results are the same on every rank, and do not depend on timing.
// Run is for one thread at a time; messages of different peers, and in different directions, may run beside it.
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

// The ranks of several hosts as a Group: torch's Gloo, on host memory.
//
// `gloo` is a backend of torch's own (made by Python: its headers need Gloo's, which the wheel lacks). Divergence is
// checked as shared_memory does, by an all-gather of what each rank is about to do. With P ranks and N bytes a rank:
// all_gather is Gloo's ring (P-1 steps, P*N bytes); reduce_scatter an exchange of parts (P-1 messages of N/P), combined
// here; all_reduce and reduce these two, one after the other (2*N bytes); the rest are Gloo's own algorithms.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "collectives/collective.h"

namespace tpu {

std::unique_ptr<Group> MakeGlooGroup(c10::intrusive_ptr<c10d::Backend> gloo, std::chrono::milliseconds timeout);

}  // namespace tpu

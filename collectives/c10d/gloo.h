// The ranks of several hosts as a Group: torch's Gloo, on host memory.
//
// `gloo` is a backend of torch's own (made by Python: its headers need Gloo's, which the wheel lacks). Divergence is
// checked as shared_memory does, by an all-gather of what each rank is about to do.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "collectives/collective.h"

namespace tpu {

std::unique_ptr<Group> MakeGlooGroup(c10::intrusive_ptr<c10d::Backend> gloo, std::chrono::milliseconds timeout);

}  // namespace tpu

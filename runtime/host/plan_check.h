// The consistency of a Plan: every index, offset and extent lies within what it refers to.
//
// Called by Plan::Parse, so by everything that comes from disk or another process. Pure.
#pragma once

#include "absl/status/status.h"
#include "runtime/host/plan.h"

namespace tpu::host {

// InvalidArgument, naming the part and what is wrong with it.
absl::Status CheckPlan(const Plan& plan);

}  // namespace tpu::host

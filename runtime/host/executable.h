// A Plan ready to launch: constants in place, kernels loaded, every step's operands resolved as far as they can be.
//
// Made by HostDevice::Load; owned by the caller; does not outlive its device. Launch may run on several threads at
// once.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/device.h"
#include "runtime/host/code_loader.h"
#include "runtime/host/plan.h"
#include "runtime/host/plan_family.h"

namespace tpu::host {

// `device` serves outputs and temporaries. `plan` has passed CheckPlan.
absl::StatusOr<std::unique_ptr<Executable>> LoadPlan(Device* device, Plan plan, CodeLoader* loader);
absl::StatusOr<std::unique_ptr<ExecutableFamily>> LoadPlanFamily(Device* device, PlanFamily family, CodeLoader* loader);

}  // namespace tpu::host

// A compiled module that several devices of one client run at once, each as one of its replicas.
//
// Made by PjrtDevice::LoadJoint; does not outlive its devices. Launch may run on several threads at once: the client is
// given one joint launch at a time.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/pjrt/executable.h"

namespace tpu::pjrt {

absl::StatusOr<std::unique_ptr<JointExecutable>> LoadJointModule(std::vector<std::shared_ptr<Place>> places,
                                                                 const Program& program);

}  // namespace tpu::pjrt

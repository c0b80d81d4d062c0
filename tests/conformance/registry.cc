#include "tests/conformance/registry.h"

#include <utility>

namespace tpu::conformance {

std::vector<DeviceCase>& Cases() {
  static auto* cases = new std::vector<DeviceCase>;
  return *cases;
}

bool Register(DeviceCase device_case) {
  Cases().push_back(std::move(device_case));
  return true;
}

}  // namespace tpu::conformance

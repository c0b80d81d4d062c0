// Devices behind a plugin of the PJRT C API. Their memory is the plugin's; buffers are immutable typed arrays, and a
// Buffer's data() is the plugin's handle. Run programs of format "stablehlo" (module.h).
//
// Made by the composition root, all devices of one client at once. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/device.h"

namespace tpu::pjrt {

struct Config {
  std::string plugin;         // path of the shared library
  std::string options;        // "name=value,...": the plugin's own
  int devices = 0;            // the first so many; 0: all that the plugin has
  int64_t memory_bytes = 0;   // of each device; 0: what the plugin says
  int timeout_seconds = 300;  // to load and to make a client
};

// Errors name the plugin.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> MakeDevices(const Config& config);

}  // namespace tpu::pjrt

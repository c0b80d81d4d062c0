// Compiling for chips that this machine has not: a topology by name, and what the compiler says of a module for it.
//
// Used by `python -m torch_tpu.aot` through the bindings, in a process of its own: bad modules can abort the plugin. A
// Topology keeps its plugin loaded. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tpu::pjrt {

class Api;

struct AotReport {
  int64_t argument_bytes = 0, output_bytes = 0, donated_bytes = 0, temporary_bytes = 0, code_bytes = 0;
  int64_t peak_bytes = 0;               // of device memory; 0 where the plugin does not tell
  std::map<std::string, double> costs;  // the plugin's own names: "flops", "bytes accessed", ...
};

class Topology {
 public:
  virtual ~Topology() = default;
  // For one of the topology's devices, or for so many together.
  virtual absl::StatusOr<AotReport> Compile(const std::string& stablehlo, int replicas) = 0;
};

// `name` as the plugin knows it: "v5e:2x2". `options`: the plugin's own, "name=value,..."; a GPU's plugin has no names,
// and takes what it should know of the chip from them.
absl::StatusOr<std::unique_ptr<Topology>> MakeTopology(const std::string& plugin, const std::string& name,
                                                       const std::string& options);
// The plugin's API version and attributes, for `doctor`. The plugin is loaded and initialised; errors name it.
absl::StatusOr<std::map<std::string, std::string>> DescribePlugin(const std::string& plugin, int timeout_seconds);

}  // namespace tpu::pjrt

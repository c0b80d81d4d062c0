// The CPU plugin of the PJRT C API, with modules written by hand.
#ifdef TORCH_TPU_WITH_PJRT
#include <fmt/format.h>

#include "runtime/pjrt/module.h"
#include "runtime/pjrt/pjrt_device.h"
#include "tests/conformance/registry.h"

namespace tpu::conformance {
namespace {

TensorType Floats(int64_t n) { return {DType::kFloat32, {n}}; }

Program Finish(pjrt::Module module, std::vector<TensorType> inputs, std::vector<TensorType> outputs) {
  return {.format = pjrt::kFormat, .bytes = module.Serialize(), .inputs = inputs, .outputs = outputs};
}

Program AddProgram(int64_t n) {
  pjrt::Module module;
  module.text = fmt::format(R"(
module @add {{
  func.func public @main(%x: tensor<{0}xf32>, %y: tensor<{0}xf32> {{tf.aliasing_output = 0 : i32}}) -> tensor<{0}xf32> {{
    %0 = stablehlo.add %x, %y : tensor<{0}xf32>
    return %0 : tensor<{0}xf32>
  }}
}})",
                            n);
  module.outputs = {{false, 0}};
  module.results = 1;
  module.donors = {1};
  return Finish(module, {Floats(n), Floats(n)}, {Floats(n)});
}

Program TakeProgram(int64_t n, int64_t m) {
  pjrt::Module module;
  module.text = fmt::format(R"(
module @take {{
  func.func public @main(%x: tensor<{0}xf32>, %i: tensor<{1}xi64>) -> (tensor<{1}xf32>, tensor<i1>) {{
    %0 = "stablehlo.gather"(%x, %i) {{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0],
        start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1>}}
        : (tensor<{0}xf32>, tensor<{1}xi64>) -> tensor<{1}xf32>
    %n = stablehlo.constant dense<{0}> : tensor<{1}xi64>
    %above = stablehlo.compare GE, %i, %n : (tensor<{1}xi64>, tensor<{1}xi64>) -> tensor<{1}xi1>
    %false = stablehlo.constant dense<false> : tensor<i1>
    %any = stablehlo.reduce(%above init: %false) applies stablehlo.or across dimensions = [0]
        : (tensor<{1}xi1>, tensor<i1>) -> tensor<i1>
    return %0, %any : tensor<{1}xf32>, tensor<i1>
  }}
}})",
                            n, m);
  module.outputs = {{false, 0}};
  module.results = 1;
  module.checked = true;
  module.donors = {-1};
  return Finish(module, {Floats(n), {DType::kInt64, {m}}}, {Floats(m)});
}

Program IdentityProgram(int64_t n) {
  pjrt::Module module;
  module.outputs = {{true, 0}, {true, 0}};
  return Finish(module, {Floats(n)}, {Floats(n), Floats(n)});
}

Program NoProgram(int64_t) { return {}; }

// A plugin is loaded once: every device of the suite shares a client, and has a memory size of its own.
std::unique_ptr<Device> MakeDevice(int64_t memory_bytes) {
  auto devices = pjrt::MakeDevices({.plugin = TORCH_TPU_CPU_PLUGIN, .devices = 1, .memory_bytes = memory_bytes});
  if (!devices.ok()) throw std::runtime_error(devices.status().ToString());
  return std::move(devices->front());
}

[[maybe_unused]] const bool registered =
    Register({.name = "pjrt_cpu",
              .make = MakeDevice,
              .add = AddProgram,
              .take = TakeProgram,
              .identity = IdentityProgram,
              .call = NoProgram,
              .excluded = {{"HandsNodesToTheRunnerAndPassesItsErrorOn",
                            "its programs hold no calls: its memory has no addresses for host kernels"}}});

}  // namespace
}  // namespace tpu::conformance
#endif

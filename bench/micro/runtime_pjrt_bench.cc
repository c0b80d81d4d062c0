// A launch of a small module through the Device, against the plugin's own Execute of it, on the CPU plugin.
#ifdef TORCH_TPU_WITH_PJRT
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "runtime/pjrt/client.h"
#include "runtime/pjrt/module.h"
#include "runtime/pjrt/pjrt_device.h"

namespace tpu::pjrt {
namespace {

constexpr char kAdd[] = R"(
module @add {
  func.func public @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %x, %y : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
})";
const TensorType kFloats{DType::kFloat32, {4}};
constexpr float kOnes[] = {1, 1, 1, 1};
// Launches before the next wait.
constexpr int kBurst = 16;

void PluginExecute(benchmark::State& state) {
  const auto client = *Client::Create(*Api::Load(TORCH_TPU_CPU_PLUGIN), "");
  PJRT_LoadedExecutable* executable = *client->CompileAndLoad(kAdd);
  PJRT_Device* const device = client->devices()[0];
  PJRT_Buffer* inputs[] = {*client->Upload(kOnes, kFloats, device), *client->Upload(kOnes, kFloats, device)};
  const int64_t kept[] = {0, 1};
  for (auto _ : state) {
    PJRT_Event* done[kBurst];
    PJRT_Buffer* results[kBurst];
    for (int i = 0; i < kBurst; ++i) {
      auto options = Sized<PJRT_ExecuteOptions>(PJRT_ExecuteOptions_STRUCT_SIZE);
      options.non_donatable_input_indices = kept;
      options.num_non_donatable_input_indices = 2;
      PJRT_Buffer* const* arguments = inputs;
      PJRT_Buffer** outputs = &results[i];
      auto args = TPU_PJRT_ARGS(PJRT_LoadedExecutable_Execute);
      args.executable = executable;
      args.options = &options;
      args.argument_lists = &arguments;
      args.num_devices = 1;
      args.num_args = 2;
      args.output_lists = &outputs;
      args.device_complete_events = &done[i];
      args.execute_device = device;
      if (!TPU_PJRT_CALL(client->api(), PJRT_LoadedExecutable_Execute, args).ok()) state.SkipWithError("Execute");
    }
    for (int i = 0; i < kBurst; ++i) {
      if (!client->api().Await(done[i]).ok()) state.SkipWithError("Await");
      client->Destroy(results[i]);
    }
  }
  state.SetItemsProcessed(state.iterations() * kBurst);
}
BENCHMARK(PluginExecute)->UseRealTime();

void DeviceLaunch(benchmark::State& state) {
  auto devices = *MakeDevices({.plugin = TORCH_TPU_CPU_PLUGIN, .devices = 1});
  Device& device = *devices[0];
  Module module;
  module.text = kAdd;
  module.outputs = {{false, 0}};
  module.results = 1;
  module.donors = {-1};
  const auto executable = *device.Load(
      {.format = kFormat, .bytes = module.Serialize(), .inputs = {kFloats, kFloats}, .outputs = {kFloats}});
  const BufferRef x = *device.MakeValue(kFloats, kOnes), y = *device.MakeValue(kFloats, kOnes);
  for (auto _ : state) {
    BufferRef outputs[kBurst];
    for (int i = 0; i < kBurst; ++i) {
      Argument inputs[] = {{.buffer = x}, {.buffer = y}};
      if (!executable->Launch(absl::MakeSpan(inputs), {&outputs[i], 1}, nullptr).ok()) state.SkipWithError("Launch");
    }
    for (const BufferRef& output : outputs) {
      if (!device.Wait(output).ok()) state.SkipWithError("Wait");
    }
  }
  state.SetItemsProcessed(state.iterations() * kBurst);
}
BENCHMARK(DeviceLaunch)->UseRealTime();

}  // namespace
}  // namespace tpu::pjrt
#endif

BENCHMARK_MAIN();

// all_reduce of f32 on two of the CPU plugin's devices, ranks as threads: by the devices themselves, and by way of the
// host, as ranks that are processes do it.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "collectives/device_ranks.h"
#include "collectives/shared_memory.h"
#include "compiler/stablehlo/exchange.h"
#include "runtime/pjrt/pjrt_device.h"

namespace tpu {
namespace {

constexpr int kRanks = 2;
constexpr std::chrono::milliseconds kTimeout{60000};

void MustBeOk(const absl::Status& status) {
  if (!status.ok()) std::abort();
}

Device& DeviceOf(int rank) {
  static auto* devices = new std::vector<std::unique_ptr<Device>>(
      *pjrt::MakeDevices({.plugin = TORCH_TPU_CPU_PLUGIN, .options = "cpu_device_count=2"}));
  return *(*devices)[static_cast<size_t>(rank)];
}

BufferRef ByDevices(DeviceRanks& ranks, Group& group, const TensorType& type, const BufferRef& operand) {
  auto part = std::make_shared<DeviceRanks::Part>();
  part->device = &DeviceOf(group.rank());
  part->collective = {.verb = Verb::kAllReduce, .dtype = DType::kFloat32};
  part->collective.inputs = part->collective.outputs = {{nullptr, static_cast<int64_t>(type.bytes())}};
  part->collective.by_devices = true;
  part->sources = part->targets = {{type, 0, {type.elements()}}};
  part->inputs.push_back({operand});
  MustBeOk(ranks.Run(group, part).status());
  MustBeOk(part->device->Wait(part->outputs[0]));
  return part->outputs[0];
}

BufferRef ByHost(Group& group, const TensorType& type, const BufferRef& operand) {
  Device& device = DeviceOf(group.rank());
  std::vector<char> in(type.bytes()), out(type.bytes());
  MustBeOk(device.CopyToHost(operand, in.data(), in.size()));
  Collective c{.verb = Verb::kAllReduce, .dtype = DType::kFloat32};
  c.inputs = {{in.data(), static_cast<int64_t>(in.size())}};
  c.outputs = {{out.data(), static_cast<int64_t>(out.size())}};
  MustBeOk(group.Run(c));
  return *device.MakeValue(type, out.data());
}

// Arguments: whether by the host, bytes.
void AllReduce(benchmark::State& state) {
  const bool by_host = state.range(0) != 0;
  const int64_t bytes = state.range(1), times = bytes > (8 << 20) ? 4 : 100;
  const TensorType type{DType::kFloat32, {bytes / 4}};
  for (auto _ : state) {
    const std::shared_ptr<Segment> segment = *Segment::Create(kRanks);
    DeviceRanks ranks(kRanks, &stablehlo::CompileExchange);
    double seconds = 0;
    const auto run = [&](int rank) {
      const std::unique_ptr<Group> group = MakeSharedMemoryGroup(segment, rank, kTimeout);
      BufferRef value = *DeviceOf(rank).MakeValue(type, nullptr);
      auto start = std::chrono::steady_clock::now();
      for (int64_t i = -2; i < times; ++i) {
        if (i == 0) start = std::chrono::steady_clock::now();
        value = by_host ? ByHost(*group, type, value) : ByDevices(ranks, *group, type, value);
      }
      if (rank == 0) seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    std::vector<std::thread> threads;
    for (int r = 0; r < kRanks; ++r) threads.emplace_back(run, r);
    for (std::thread& t : threads) t.join();
    state.SetIterationTime(seconds / static_cast<double>(times));
  }
}
BENCHMARK(AllReduce)
    ->ArgNames({"by_host", "bytes"})
    ->ArgsProduct({{0, 1}, {1 << 10, 1 << 20, 64 << 20}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->Iterations(1)
    ->Repetitions(9)
    ->DisplayAggregatesOnly();

}  // namespace
}  // namespace tpu

BENCHMARK_MAIN();

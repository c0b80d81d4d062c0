// torch.profiler's device events on tpu streams.
#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>

#include "dispatcher/streams.h"
#include "jit/engine.h"

namespace tpu {
namespace {

struct Stubs final : torch::profiler::impl::ProfilerStubs {
  using EventStub = torch::profiler::impl::ProfilerVoidEventStub;

  void record(c10::DeviceIndex* device, EventStub* event, int64_t* cpu_ns) const override {
    Stream& stream = CurrentStream();
    if (device != nullptr) *device = static_cast<c10::DeviceIndex>(CurrentDevice());
    Engine::Get().CutStream(stream, CutReason::kSynchronize, "profiler");
    auto made = std::make_shared<Event>();
    made->Record(stream);
    *event = made;
    if (cpu_ns != nullptr) {
      *cpu_ns =
          std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
              .count();
    }
  }
  float elapsed(const EventStub* start, const EventStub* end) const override {
    const auto* first = static_cast<const Event*>(start->get());
    const auto* last = static_cast<const Event*>(end->get());
    first->Synchronize();
    last->Synchronize();
    return static_cast<float>(first->ElapsedMs(*last) * 1000);
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> op) const override {
    for (int device = 0; device < DeviceCount(); ++device) op(device);
  }
  void synchronize() const override {
    for (int device = 0; device < DeviceCount(); ++device) Engine::Get().SynchronizeDevice(device);
  }
};

const bool registered = [] {
  static Stubs stubs;
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
  return true;
}();

}  // namespace
}  // namespace tpu

// PyTorch's device guard: current device, streams and events of the tpu device, each mapped to runtime/stream.h.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "dispatcher/convert.h"
#include "dispatcher/stream_graph.h"
#include "dispatcher/streams.h"
#include "jit/engine.h"
#include "runtime/device.h"
#include "runtime/fork.h"

namespace tpu {
namespace {

c10::Device TorchDevice(int index) { return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)}; }

// A device without an index is the current one.
int Resolve(c10::Device device) { return device.has_index() ? device.index() : CurrentDevice(); }

Event* AsEvent(void* event) { return static_cast<Event*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(DeviceCount()); }

  c10::Device getDevice() const override { return TorchDevice(CurrentDevice()); }
  void setDevice(c10::Device device) const override {
    CheckDevice(device.index());
    ExchangeDevice(device.index());
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const int index = Resolve(device);
    if (index != CurrentDevice()) CheckDevice(index);
    return TorchDevice(ExchangeDevice(index));
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { ExchangeDevice(device.index()); }
  // The element types that are computed in or converted; others are kept and moved. A bit for each, by its number.
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    uint64_t& bits = capability.capability_data.capability_bits;
    bits = 0;
    for (int type = 0; type < kNumDTypes; ++type)
      bits |= 1ULL << static_cast<int>(ToScalarType(static_cast<DType>(type)));
    return capability;
  }

  // Autograd asks for those of tensors, from where no exception may come: others say that there was a fork. What only
  // asks, as Dynamo does for whatever it compiles, makes no devices.
  c10::Stream getStream(c10::Device device) const override {
    if (Engine::IsInitialized() && !InForkedChild()) return ToTorch(CurrentStream(Resolve(device)));
    CheckDevice(Resolve(device));
    return getDefaultStream(device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, TorchDevice(Resolve(device)), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  // All streams are alike: priorities are taken and mean nothing.
  c10::Stream getNewStream(c10::Device device, int) const override {
    CheckFork();
    CheckDevice(Resolve(device));
    CurrentStream(Resolve(device));
    return ToTorch(Engine::Get().NewStream(Resolve(device)));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return ToTorch(ExchangeStream(FromTorch(stream))); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &FromTorch(stream); }
  bool isStreamCapturing(const c10::Stream& stream) const override {
    return Capture::Current() != nullptr && IsCapturing(FromTorch(stream));
  }

  bool queryStream(const c10::Stream& torch_stream) const override {
    Stream& stream = FromTorch(torch_stream);
    Engine::Get().CutStream(stream, CutReason::kSynchronize, "Stream.query");
    return stream.Idle();
  }
  void synchronizeStream(const c10::Stream& torch_stream) const override {
    Engine::Get().SynchronizeStream(FromTorch(torch_stream));
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    CheckFork();
    const int device = index < 0 ? CurrentDevice() : index;
    CheckDevice(device);
    if (Engine::IsInitialized()) Engine::Get().SynchronizeDevice(device);
  }

  void record(void** event, const c10::Stream& torch_stream, const c10::DeviceIndex device,
              const c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == torch_stream.device_index(), "Event device index ", device,
                " does not match recording stream's device index ", torch_stream.device_index(), ".");
    Stream& stream = FromTorch(torch_stream);
    Engine::Get().CutStream(stream, CutReason::kSynchronize, "Event.record");
    if (*event == nullptr) *event = new Event;
    AsEvent(*event)->Record(stream);
  }
  void block(void* event, const c10::Stream& torch_stream) const override {
    if (event == nullptr) return;
    Stream& stream = FromTorch(torch_stream);
    Engine::Get().CutStream(stream, CutReason::kSynchronize, "Event.wait");
    AsEvent(event)->Block(stream);
  }
  bool queryEvent(void* event) const override { return event == nullptr || AsEvent(event)->Query(); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) AsEvent(event)->Synchronize();
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr,
                "Both events must be recorded before their elapsed time can be calculated.");
    TORCH_CHECK(AsEvent(start)->Query() && AsEvent(end)->Query(),
                "Both events must be completed before their elapsed time can be calculated.");
    return AsEvent(start)->ElapsedMs(*AsEvent(end));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete AsEvent(event); }

  // Values are counted: a buffer is freed when the last launch that reads it is done, on whatever stream.
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
}  // namespace tpu

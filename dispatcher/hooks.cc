// What PyTorch's device-independent code asks of the device: is it there, which is current, its generators, pinned
// memory, resizing of a storage.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "dispatcher/generator.h"
#include "dispatcher/pinned.h"
#include "dispatcher/storage.h"
#include "dispatcher/streams.h"
#include "jit/engine.h"

namespace tpu {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return DeviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return Engine::IsInitialized(); }
  void init() const override { CurrentStream(CurrentDevice()); }

  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(DeviceCount()); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(CurrentDevice()); }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    CheckDevice(device);
    ExchangeDevice(device);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    CheckDevice(device);
    return static_cast<c10::DeviceIndex>(ExchangeDevice(device));
  }
  // A negative index means "leave it".
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }
  // Every embedded device can address every pointer of the process.
  at::Device getDeviceFromPtr(void*) const override { return {c10::kPrivateUse1, getCurrentDevice()}; }

  bool isPinnedPtr(const void* data) const override { return IsPinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &PinnedHostAllocator(); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return DefaultGenerator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    if (device < 0) device = getCurrentDevice();
    CheckDevice(device);
    return at::make_generator<PhiloxGenerator>(device);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    ResizeStorage(storage, bytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace
}  // namespace tpu

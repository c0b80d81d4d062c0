#include "dispatcher/streams.h"

#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>

#include <array>
#include <limits>
#include <string>
#include <utility>

#include "jit/engine.h"
#include "runtime/device.h"
#include "runtime/flags.h"
#include "runtime/fork.h"

namespace tpu {
namespace {

thread_local int current_device = 0;
static_assert(kMostDevices == std::numeric_limits<c10::DeviceIndex>::max() + 1);
thread_local std::array<Stream*, kMostDevices> current_streams{};  // by device; null: not used by this thread yet

thread_local bool runs_backward_here = false;

// This thread's backwards run on itself, as those of CPU tensors do. Autograd's own threads are for devices that keep
// their callers waiting; recording doesn't, and handing every backward over and back costs tens of microseconds. Once:
// what a user sets later holds. The end of inference mode brings the former state back, so not there.
void RunBackwardHere() {
  c10::AutogradState& state = c10::AutogradState::get_tls_state();
  if (state.get_inference_mode()) return;
  state.set_multithreading_enabled(false);
  runs_backward_here = true;
}

}  // namespace

void CheckFork() {
  const absl::Status status = CheckNotForked();
  TORCH_CHECK(status.ok(), std::string(status.message()), ".");
}

int DeviceCount() { return Flags::Get().devices; }

void CheckDevice(int device) {
  TORCH_CHECK(device >= 0 && device < DeviceCount(), "tpu: invalid device ordinal ", device, ": there ",
              DeviceCount() == 1 ? "is 1 device" : "are " + std::to_string(DeviceCount()) + " devices",
              " (TORCH_TPU_DEVICES)");
}

int CurrentDevice() { return current_device; }

int ExchangeDevice(int device) {
  const int former = current_device;
  current_device = device;
  return former;
}

Stream& CurrentStream(int device) {
  if (C10_UNLIKELY(InForkedChild())) CheckFork();
  if (C10_UNLIKELY(!runs_backward_here)) RunBackwardHere();
  const size_t index = static_cast<size_t>(device);
  if (C10_UNLIKELY(index >= current_streams.size() || current_streams[index] == nullptr)) {
    CheckDevice(device);
    current_streams[index] = &Engine::Get().stream(device, 0);
  }
  return *current_streams[index];
}

Stream& ExchangeStream(Stream& stream) {
  const int device = stream.device_index();
  Stream& former = CurrentStream(device);
  current_streams[device] = &stream;
  return former;
}

c10::Stream ToTorch(const Stream& stream) {
  return c10::Stream(c10::Stream::UNSAFE,
                     c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(stream.device_index())), stream.id());
}

Stream& FromTorch(const c10::Stream& stream) {
  CheckFork();
  CheckDevice(stream.device_index());
  TORCH_CHECK_VALUE(stream.id() >= 0 && stream.id() < kMaxStreams, "tpu has no stream ", stream.id());
  return Engine::Get().stream(stream.device_index(), static_cast<int>(stream.id()));
}

}  // namespace tpu

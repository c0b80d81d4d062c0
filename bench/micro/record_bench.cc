// What one small operation costs its caller, C++ to C++: at::add on `tpu` (recorded) or on the CPU (computed).
//
// A shared library that bench/topics/recording.py loads into a Python process, where the device is registered. Each
// function returns nanoseconds an operation over `operations` of them, the cut of the window at their end included and
// what the device does afterwards excluded.
#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>

namespace {

using Clock = std::chrono::steady_clock;

template <class Operation>
double Measure(bool tpu, int operations, Operation operation) {
  c10::InferenceMode no_autograd;
  const at::Device device = tpu ? at::Device(at::kPrivateUse1, 0) : at::Device(at::kCPU);
  const at::Tensor x = at::ones({4}, at::TensorOptions().device(device));
  const at::Tensor y = at::full({4}, 0.5, at::TensorOptions().device(device));
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (tpu) guard.synchronizeDevice(0);
  void* event = nullptr;
  const auto start = Clock::now();
  for (int i = 0; i < operations; ++i) operation(x, y);
  // An event on the stream cuts the window without waiting.
  if (tpu) guard.record(&event, guard.getStream(device), 0, c10::EventFlag::PYTORCH_DEFAULT);
  const std::chrono::duration<double, std::nano> taken = Clock::now() - start;
  if (tpu) {
    guard.synchronizeDevice(0);
    guard.destroyEvent(event, 0);
  }
  return taken.count() / operations;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) double record_add(int tpu, int operations) {
  return Measure(tpu != 0, operations, [](const at::Tensor& x, const at::Tensor& y) { return at::add(x, y); });
}

extern "C" __attribute__((visibility("default"))) double record_add_in_place(int tpu, int operations) {
  return Measure(tpu != 0, operations, [](const at::Tensor& x, const at::Tensor& y) {
    at::Tensor target = x;
    target.add_(y);
  });
}

// torch_tpu._C: devices, forks and the frames that are not the user's.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "bindings/autograd_threads.h"
#include "bindings/bindings.h"
#include "bindings/python_frames.h"
#include "dispatcher/streams.h"
#include "jit/engine.h"
#include "runtime/device.h"
#include "runtime/fork.h"

namespace tpu {

namespace py = pybind11;

namespace {

// A thread is inside a library whose end, after Python's, it would not survive, or a forked child has none of the
// threads that libraries wait for (autograd for 10 s): the process ends before the libraries do.
void LeaveWithoutUnloading() {
  on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        _exit(status);
      },
      nullptr);
}

}  // namespace

void BindDevices(py::module_& m) {
  m.def("device_count", &DeviceCount);
  m.def("current_device", &CurrentDevice);
  m.def("set_device", [](int device) {
    CheckDevice(device);
    ExchangeDevice(device);
  });
  m.def("exchange_device", [](int device) {
    if (device < 0) return CurrentDevice();
    CheckDevice(device);
    return ExchangeDevice(device);
  });
  m.def("maybe_exchange_device", [](int device) {
    if (device < 0 || device >= DeviceCount()) return CurrentDevice();
    return ExchangeDevice(device);
  });
  m.def("synchronize", [](int device) {
    CheckFork();
    CheckDevice(device);
    if (!Engine::IsInitialized()) return;
    py::gil_scoped_release release;
    Engine::Get().SynchronizeDevice(device);
  });
  m.def("shutdown", [] {
    if (!Engine::IsInitialized()) return;
    if (InForkedChild()) return LeaveWithoutUnloading();
    py::gil_scoped_release release;
    try {
      WaitForAutogradThreads();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "torch_tpu: autograd's threads can't be waited for: %s\n", error.what());
    }
    if (!Engine::Get().Shutdown()) LeaveWithoutUnloading();
  });
  m.def("is_initialized", &Engine::IsInitialized);
  m.def("init", [] { CurrentStream(CurrentDevice()); });
  m.def("in_bad_fork", &InForkedChild);
  m.def("describe", [](int device) {
    CurrentStream(device);
    return Engine::Get().device(device).Describe();
  });
  m.def("target", [](int device) {
    CurrentStream(device);
    return Engine::Get().device(device).Target();
  });
  m.def("set_library_directories", &SetLibraryDirectories);
  m.def("user_frame", &UserFrame);
}

}  // namespace tpu

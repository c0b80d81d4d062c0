#include "bindings/composition.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python_frames.h"
#include "compiler/host/host_backend.h"
#include "compiler/stablehlo/stablehlo_backend.h"
#include "dispatcher/errors.h"
#include "dispatcher/host_kernels.h"
#include "dispatcher/host_team.h"
#include "jit/engine.h"
#include "runtime/flags.h"
#include "runtime/host/host_device.h"
#include "runtime/host/matrix_library.h"
#include "runtime/pjrt/pjrt_device.h"

namespace tpu {
namespace {

// The BLAS inside torch (MKL on x86-64), when this torch exports one.
void UseTorchMatrixLibrary() {
  void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (torch == nullptr) return;
  host::MatrixLibrary library;
  library.sgemm = reinterpret_cast<host::SgemmFn>(dlsym(torch, "sgemm_"));
  library.dgemm = reinterpret_cast<host::DgemmFn>(dlsym(torch, "dgemm_"));
  library.set_threads_on_this_thread = reinterpret_cast<int (*)(int)>(dlsym(torch, "MKL_Set_Num_Threads_Local"));
  library.name = library.set_threads_on_this_thread != nullptr ? "mkl" : "blas";
  if (library.sgemm != nullptr && library.dgemm != nullptr) host::SetMatrixLibrary(library);
  dlclose(torch);  // it stays: torch itself holds it
}

std::unique_ptr<Engine> MakeHostEngine() {
  static host::CodeLoader* const loader = host::MakeObjectLoader().release();  // outlives every device
  UseTorchMatrixLibrary();
  const Flags& flags = Flags::Get();
  std::vector<std::unique_ptr<Device>> devices;
  devices.reserve(static_cast<size_t>(flags.devices));
  for (int index = 0; index < flags.devices; ++index) {
    devices.push_back(host::MakeHostDevice(index, flags.memory_bytes, loader));
  }
  auto engine = std::make_unique<Engine>(std::move(devices), host::MakeHostBackend());
  engine->set_long_launch_hook(&HoldHostTeam);
  return engine;
}

std::string& Plugin() {
  static auto* path = new std::string();
  return *path;
}

std::unique_ptr<Engine> MakePluginEngine() {
#ifdef TORCH_TPU_WITH_PJRT
  const Flags& flags = Flags::Get();
  auto devices = ValueOrThrow(pjrt::MakeDevices({.plugin = Plugin(),
                                                 .options = flags.plugin_options,
                                                 .devices = flags.devices,
                                                 .memory_bytes = flags.memory_bytes,
                                                 .timeout_seconds = flags.plugin_timeout}));
  return std::make_unique<Engine>(std::move(devices), stablehlo::MakeStablehloBackend());
#else
  TORCH_CHECK(false, "tpu: this build has no PJRT devices: xla-cpu-pjrt was not there when it was built");
#endif
}

std::unique_ptr<Engine> MakeEngine() {
  auto engine = Plugin().empty() ? MakeHostEngine() : MakePluginEngine();
  engine->set_where_hook(&UserFrame);
  engine->set_call_runner(&RunCall);
  engine->set_fixed_hook([] { return at::globalContext().deterministicAlgorithms(); });
  return engine;
}

}  // namespace

void SetPlugin(std::string path) { Plugin() = std::move(path); }

void ComposeEngine() {
  Engine::SetFactory(&MakeEngine);
  SetBlockingHook(&WaitWithoutInterpreterLock);
}

}  // namespace tpu

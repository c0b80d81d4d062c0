// torch_tpu._C: eager modes and waiting for the compile pool.
#include <c10/util/Exception.h>

#include <array>
#include <string>

#include "bindings/bindings.h"
#include "dispatcher/streams.h"
#include "dispatcher/values.h"
#include "jit/engine.h"

namespace tpu {

namespace py = pybind11;

namespace {

constexpr std::array<const char*, 3> kModeNames = {"fused", "strict", "debug"};  // in the order of Mode

Engine& MadeEngine() {
  CurrentStream(CurrentDevice());
  return Engine::Get();
}

void SetMode(const std::string& name) {
  for (size_t i = 0; i < kModeNames.size(); ++i) {
    if (name != kModeNames[i]) continue;
    Engine& engine = MadeEngine();
    py::gil_scoped_release release;
    engine.set_mode(static_cast<Mode>(i));
    return;
  }
  TORCH_CHECK_VALUE(false, "eager mode must be 'fused', 'strict' or 'debug', not '", name, "'");
}

}  // namespace

void WaitForCompiles() {
  bool raised = false;
  {
    py::gil_scoped_release release;
    Engine::Get().WaitForCompiles([&raised] {
      py::gil_scoped_acquire acquire;
      return raised = PyErr_CheckSignals() != 0;
    });
  }
  if (raised) throw py::error_already_set();
}

void BindModes(py::module_& m) {
  m.def("set_eager_mode", &SetMode);
  m.def("get_eager_mode", [] { return kModeNames[static_cast<size_t>(MadeEngine().mode())]; });
  m.def("set_sync_debug_mode", [](int mode) { SetSyncDebug(static_cast<SyncDebug>(mode)); });
  m.def("get_sync_debug_mode", [] { return static_cast<int>(GetSyncDebug()); });
  m.def("wait_for_compiles", [] {
    if (Engine::IsInitialized()) WaitForCompiles();
  });
}

}  // namespace tpu

// torch_tpu._C: device memory figures.
#include "bindings/bindings.h"
#include "dispatcher/allocator.h"
#include "dispatcher/streams.h"
#include "jit/engine.h"

namespace tpu {

namespace py = pybind11;

namespace {

py::dict MemoryStatsOf(int device) {
  MemoryStats stats;
  {
    py::gil_scoped_release release;
    stats = SettledMemoryStats(device);
  }
  py::dict result;
  result["allocated_bytes"] = stats.allocated_bytes;
  result["peak_allocated_bytes"] = stats.peak_allocated_bytes;
  result["reserved_bytes"] = stats.reserved_bytes;
  result["peak_reserved_bytes"] = stats.peak_reserved_bytes;
  result["limit_bytes"] = stats.limit_bytes;
  result["num_allocs"] = stats.num_allocs;
  result["num_system_allocs"] = stats.num_system_allocs;
  result["num_ooms"] = stats.num_ooms;
  return result;
}

}  // namespace

void BindMemory(py::module_& m) {
  m.def("memory_stats", &MemoryStatsOf);
  m.def("empty_cache", [] {
    py::gil_scoped_release release;
    TorchAllocator().emptyCache();
  });
  m.def("reset_peak_memory_stats", [](int device) {
    py::gil_scoped_release release;
    TorchAllocator().resetPeakStats(static_cast<c10::DeviceIndex>(device));
  });
  m.def("reset_accumulated_memory_stats", [](int device) {
    py::gil_scoped_release release;
    TorchAllocator().resetAccumulatedStats(static_cast<c10::DeviceIndex>(device));
  });
}

}  // namespace tpu

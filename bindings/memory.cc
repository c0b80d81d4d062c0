// torch_tpu._C: device memory figures.
#include "bindings/bindings.h"
#include "dispatcher/allocator.h"
#include "dispatcher/pinned.h"
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
  result["allowed_bytes"] = stats.allowed_bytes;
  result["num_allocs"] = stats.num_allocs;
  result["num_system_allocs"] = stats.num_system_allocs;
  result["num_ooms"] = stats.num_ooms;
  return result;
}

py::dict Figures(const c10::CachingAllocator::Stat& stat) {
  py::dict figures;
  figures["current"] = stat.current;
  figures["peak"] = stat.peak;
  figures["allocated"] = stat.allocated;
  figures["freed"] = stat.freed;
  return figures;
}

py::dict HostMemoryStats() {
  const at::HostStats stats = PinnedHostAllocator().get_stats();
  py::dict result;
  result["allocations"] = Figures(stats.allocations);
  result["allocated_bytes"] = Figures(stats.allocated_bytes);
  result["active_requests"] = Figures(stats.active_requests);
  result["active_bytes"] = Figures(stats.active_bytes);
  result["num_host_alloc"] = stats.num_host_alloc;
  result["num_host_free"] = stats.num_host_free;
  return result;
}

}  // namespace

void BindMemory(py::module_& m) {
  m.def("memory_stats", &MemoryStatsOf);
  m.def("allow_memory", [](int device, double fraction) {
    py::gil_scoped_release release;
    AllowMemory(device, fraction);
  });
  m.def("host_memory_stats", &HostMemoryStats);
  m.def("reset_peak_host_memory_stats", [] { PinnedHostAllocator().reset_peak_stats(); });
  m.def("reset_accumulated_host_memory_stats", [] { PinnedHostAllocator().reset_accumulated_stats(); });
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

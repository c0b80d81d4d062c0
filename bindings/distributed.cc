// torch_tpu._C: the process group, made for torch.distributed (python/torch_tpu/distributed.py).
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "bindings/bindings.h"
#include "collectives/c10d/process_group.h"

namespace tpu {

namespace py = pybind11;

void BindDistributed(py::module_& m) {
  using StoreRef = c10::intrusive_ptr<c10d::Store>;
  using BackendRef = c10::intrusive_ptr<c10d::Backend>;
  using ReleaseLock = py::call_guard<py::gil_scoped_release>;
  m.def("meet", &ProcessGroupTpu::Meet, ReleaseLock());
  m.def("on_one_host", &ProcessGroupTpu::OnOneHost, ReleaseLock());
  // Its base class is Python's only once torch.distributed is there.
  m.def("bind_process_group", [m]() mutable {
    using Options = ProcessGroupTpu::TpuOptions;
    py::class_<Options, c10::intrusive_ptr<Options>, c10d::Backend::Options>(m, "ProcessGroupOptions")
        .def("__deepcopy__", [](const Options& o, const py::object&) { return c10::make_intrusive<Options>(o); });
    py::class_<ProcessGroupTpu, c10::intrusive_ptr<ProcessGroupTpu>, c10d::Backend>(m, "ProcessGroupTpu")
        .def(py::init([](const StoreRef& store, int rank, int size, std::chrono::milliseconds timeout,
                         const std::optional<BackendRef>& gloo) {
               return ProcessGroupTpu::Make(store, rank, size, timeout, gloo.value_or(BackendRef()));
             }),
             ReleaseLock())
        .def_property_readonly("options",
                               [](ProcessGroupTpu& group) {
                                 return c10::static_intrusive_pointer_cast<Options>(group.getBackendOptions());
                               })
        // What torch.distributed asks of ranks that are not in a new group; there is nothing to do.
        .def("perform_nocolor_split", [](ProcessGroupTpu&, const py::object&) {});
  });
  m.def("leave_process_groups", &ProcessGroupTpu::LeaveAll, ReleaseLock());
}

}  // namespace tpu

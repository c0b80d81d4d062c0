// torch_tpu._C: this process's fragments as StableHLO, compiling StableHLO for chips that this machine has not, and
// what a plugin says of itself.
#include "runtime/pjrt/aot.h"

#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "bindings/bindings.h"
#include "compiler/stablehlo/stablehlo_backend.h"
#include "dispatcher/errors.h"
#include "jit/cluster.h"
#include "jit/engine.h"
#include "jit/fragment_table.h"
#include "runtime/flags.h"
#include "runtime/pjrt/module.h"

namespace tpu {

namespace py = pybind11;

void BindAot(py::module_& m) {
  m.def("fragments_as_stablehlo", [] {
    py::list result;
    if (!Engine::IsInitialized()) return result;
    const auto backend = stablehlo::MakeStablehloBackend();
    for (const FragmentRef& entry : Engine::Get().Fragments()) {
      if (entry->live_ops == 0 || entry->cluster) continue;
      const Fragment& fragment = entry->fragment;
      absl::StatusOr<Program> program = backend->Compile(fragment);
      absl::StatusOr<pjrt::Module> module =
          program.ok() ? pjrt::Module::Parse(program->bytes) : absl::StatusOr<pjrt::Module>(program.status());
      py::dict found;
      found["key"] = fragment.StableKey();
      found["summary"] = fragment.Summary();
      found["where"] = entry->FirstLine();
      found["operations"] = entry->live_ops;
      found["runs"] = entry->runs();
      found["text"] = module.ok() && module->results > 0 ? module->text : "";
      found["error"] = module.ok() ? "" : std::string(module.status().message());
      result.append(std::move(found));
    }
    return result;
  });
#ifdef TORCH_TPU_WITH_PJRT
  py::class_<pjrt::Topology>(m, "Topology")
      .def(py::init([](const std::string& plugin, const std::string& name) {
        py::gil_scoped_release release;
        return ValueOrThrow(pjrt::MakeTopology(plugin, name, Flags::Get().plugin_options));
      }))
      .def("compile", [](pjrt::Topology& topology, const std::string& stablehlo, int replicas) {
        const pjrt::AotReport report = [&] {
          py::gil_scoped_release release;
          return ValueOrThrow(topology.Compile(stablehlo, replicas));
        }();
        py::dict result;
        result["argument_bytes"] = report.argument_bytes;
        result["output_bytes"] = report.output_bytes;
        result["donated_bytes"] = report.donated_bytes;
        result["temporary_bytes"] = report.temporary_bytes;
        result["code_bytes"] = report.code_bytes;
        result["peak_bytes"] = report.peak_bytes;
        result["costs"] = report.costs;
        return result;
      });
  m.def("describe_plugin", [](const std::string& plugin, int timeout_seconds) {
    py::gil_scoped_release release;
    return ValueOrThrow(pjrt::DescribePlugin(plugin, timeout_seconds));
  });
#endif
}

}  // namespace tpu

// torch_tpu._C: the numbers behind torch.tpu.metrics() and torch.tpu.explain(), and the table of flags.
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "jit/engine.h"
#include "jit/fragment_table.h"
#include "jit/metrics.h"
#include "runtime/flags.h"

namespace tpu {

namespace py = pybind11;

namespace {

py::list HostKernels() {
  py::list result;
  for (const HostKernelRecord& kernel : Metrics::Get().HostKernels()) {
    result.append(py::make_tuple(kernel.count, kernel.op, kernel.where));
  }
  return result;
}

py::list Cuts() {
  py::list result;
  for (const CutRecord& cut : Metrics::Get().Cuts()) {
    py::dict entry;
    entry["reason"] = NameOf(cut.reason);
    entry["where"] = cut.where;
    entry["what"] = cut.what;
    entry["ops"] = cut.ops;
    entry["count"] = cut.count;
    result.append(entry);
  }
  return result;
}

py::list Compiles() {
  py::list result;
  for (const CompileRecord& compile : Metrics::Get().Compiles()) {
    py::dict entry;
    entry["key"] = compile.key;
    entry["summary"] = compile.summary;
    entry["outcome"] = compile.outcome;
    entry["milliseconds"] = compile.milliseconds;
    entry["ops"] = compile.ops;
    result.append(entry);
  }
  return result;
}

py::list Fragments() {
  py::list result;
  if (!Engine::IsInitialized()) return result;
  for (const FragmentRef& fragment : Engine::Get().Fragments()) {
    if (fragment->runs() == 0) continue;
    py::dict entry;
    entry["summary"] = fragment->fragment.Summary();
    entry["where"] = fragment->FirstLine();
    entry["ops"] = fragment->live_ops;
    py::list runs, milliseconds;
    for (const TierProfile& tier : fragment->profile) {
      runs.append(tier.runs.load());
      milliseconds.append(static_cast<double>(tier.nanoseconds) / 1e6);
    }
    entry["runs"] = runs;
    entry["milliseconds"] = milliseconds;
    py::list decisions;
    std::lock_guard<std::mutex> lock(fragment->tuning.mutex);
    for (const Decision& decision : fragment->tuning.profile.decisions) {
      py::dict row;
      row["candidate"] = decision.candidate;
      row["before"] = static_cast<double>(decision.before) / 1e6;
      row["after"] = static_cast<double>(decision.after) / 1e6;
      row["adopted"] = decision.adopted;
      decisions.append(row);
    }
    entry["tuning"] = fragment->tuning.profile.tuning;
    entry["decisions"] = decisions;
    entry["finished"] = fragment->tuning.profile.finished;
    std::vector<KernelTime> times = fragment->KernelTimes();
    if (times.empty()) times = fragment->tuning.profile.kernels;
    py::list kernels;
    for (const KernelTime& kernel : times) {
      py::dict row;
      row["kernel"] = kernel.label;
      row["launches"] = kernel.runs;
      row["milliseconds"] = static_cast<double>(kernel.nanoseconds) / 1e6;
      row["bytes"] = kernel.bytes;
      kernels.append(row);
    }
    entry["kernels"] = kernels;
    result.append(entry);
  }
  return result;
}

py::list Clusters() {
  py::list result;
  if (!Engine::IsInitialized()) return result;
  for (const ClusterRecord& cluster : Engine::Get().Clusters()) {
    py::dict entry;
    entry["summary"] = cluster.summary;
    entry["where"] = cluster.where;
    entry["outcome"] = cluster.outcome;
    entry["parts"] = cluster.parts;
    entry["ops"] = cluster.ops;
    entry["before"] = cluster.before_ms;
    entry["after"] = cluster.after_ms;
    entry["followed"] = cluster.followed;
    entry["wrong_guesses"] = cluster.wrong_guesses;
    result.append(entry);
  }
  return result;
}

py::list FlagTable() {
  py::list result;
  for (const FlagInfo& flag : Flags::All()) {
    py::dict entry;
    entry["name"] = flag.name;
    entry["default"] = flag.default_value;
    entry["meaning"] = flag.meaning;
    entry["value"] = flag.value;
    result.append(entry);
  }
  return result;
}

}  // namespace

void BindInsight(py::module_& m) {
  m.def("counters", [] { return Metrics::Get().Counters(); });
  m.def("host_kernels", &HostKernels);
  m.def("uncaptured_graphs", [] { return Metrics::Get().UncapturedGraphs(); });
  m.def("cuts", &Cuts);
  m.def("compiles", &Compiles);
  m.def("fragments", &Fragments);
  m.def("clusters", &Clusters);
  m.def("reset_metrics", [] { Metrics::Get().Reset(); });
  m.def("flags", &FlagTable);
}

}  // namespace tpu

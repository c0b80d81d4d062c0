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

// describe(record, row) for each of them.
template <typename Record, typename Describe>
py::list Rows(const std::vector<Record>& records, Describe describe) {
  py::list rows;
  for (const Record& record : records) {
    py::dict row;
    describe(record, row);
    rows.append(row);
  }
  return rows;
}

py::list HostKernels() {
  py::list result;
  for (const HostKernelRecord& kernel : Metrics::Get().HostKernels()) {
    result.append(py::make_tuple(kernel.count, kernel.op, kernel.where));
  }
  return result;
}

py::list Cuts() {
  return Rows(Metrics::Get().Cuts(), [](const CutRecord& cut, py::dict& row) {
    row["reason"] = NameOf(cut.reason);
    row["where"] = cut.where;
    row["what"] = cut.what;
    row["ops"] = cut.ops;
    row["count"] = cut.count;
  });
}

py::list Compiles() {
  return Rows(Metrics::Get().Compiles(), [](const CompileRecord& compile, py::dict& row) {
    row["key"] = compile.key;
    row["summary"] = compile.summary;
    row["outcome"] = compile.outcome;
    row["milliseconds"] = compile.milliseconds;
    row["ops"] = compile.ops;
  });
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
    std::lock_guard<std::mutex> lock(fragment->tuning.mutex);
    entry["decisions"] = Rows(fragment->tuning.profile.decisions, [](const Decision& decision, py::dict& row) {
      row["candidate"] = decision.candidate;
      row["before"] = static_cast<double>(decision.before) / 1e6;
      row["after"] = static_cast<double>(decision.after) / 1e6;
      row["adopted"] = decision.adopted;
    });
    entry["tuning"] = fragment->tuning.profile.tuning;
    entry["finished"] = fragment->tuning.profile.finished;
    std::vector<KernelTime> times = fragment->KernelTimes();
    if (times.empty()) times = fragment->tuning.profile.kernels;
    entry["kernels"] = Rows(times, [](const KernelTime& kernel, py::dict& row) {
      row["kernel"] = kernel.label;
      row["launches"] = kernel.runs;
      row["milliseconds"] = static_cast<double>(kernel.nanoseconds) / 1e6;
      row["bytes"] = kernel.bytes;
    });
    result.append(entry);
  }
  return result;
}

py::list Clusters() {
  if (!Engine::IsInitialized()) return py::list();
  return Rows(Engine::Get().Clusters(), [](const ClusterRecord& cluster, py::dict& row) {
    row["summary"] = cluster.summary;
    row["where"] = cluster.where;
    row["outcome"] = cluster.outcome;
    row["parts"] = cluster.parts;
    row["ops"] = cluster.ops;
    row["before"] = cluster.before_ms;
    row["after"] = cluster.after_ms;
    row["followed"] = cluster.followed;
    row["wrong_guesses"] = cluster.wrong_guesses;
  });
}

py::list FlagTable() {
  return Rows(Flags::All(), [](const FlagInfo& flag, py::dict& row) {
    row["name"] = flag.name;
    row["default"] = flag.default_value;
    row["meaning"] = flag.meaning;
    row["value"] = flag.value;
  });
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

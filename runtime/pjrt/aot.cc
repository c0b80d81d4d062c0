#include "runtime/pjrt/aot.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/pjrt/api.h"
#include "runtime/pjrt/client.h"

namespace tpu::pjrt {
namespace {

class PluginTopology final : public Topology {
 public:
  PluginTopology(std::shared_ptr<const Api> api, PJRT_TopologyDescription* topology)
      : api_(std::move(api)), topology_(topology) {}
  ~PluginTopology() override {
    auto args = TPU_PJRT_ARGS(PJRT_TopologyDescription_Destroy);
    args.topology = topology_;
    (void)TPU_PJRT_CALL(*api_, PJRT_TopologyDescription_Destroy, args);
  }

  absl::StatusOr<AotReport> Compile(const std::string& stablehlo, int replicas) override {
    const PJRT_Program program = ProgramOf(stablehlo);
    auto platform = TPU_PJRT_ARGS(PJRT_TopologyDescription_PlatformName);
    platform.topology = topology_;
    if (absl::Status s = TPU_PJRT_CALL(*api_, PJRT_TopologyDescription_PlatformName, platform); !s.ok()) return s;
    const std::string options =
        CompileOptionsFor(std::string(platform.platform_name, platform.platform_name_size), replicas, {});
    auto args = TPU_PJRT_ARGS(PJRT_Compile);
    args.topology = topology_;
    args.program = &program;
    args.compile_options = options.data();
    args.compile_options_size = options.size();
    if (absl::Status s = TPU_PJRT_CALL(*api_, PJRT_Compile, args); !s.ok()) return s;
    AotReport report;
    absl::Status status = Measure(args.executable, report);
    auto destroy = TPU_PJRT_ARGS(PJRT_Executable_Destroy);
    destroy.executable = args.executable;
    (void)TPU_PJRT_CALL(*api_, PJRT_Executable_Destroy, destroy);
    if (!status.ok()) return status;
    return report;
  }

 private:
  absl::Status Measure(PJRT_Executable* executable, AotReport& report) const {
    auto memory = TPU_PJRT_ARGS(PJRT_Executable_GetCompiledMemoryStats);
    memory.executable = executable;
    if (absl::Status s = TPU_PJRT_CALL(*api_, PJRT_Executable_GetCompiledMemoryStats, memory); !s.ok()) return s;
    report.argument_bytes = memory.argument_size_in_bytes;
    report.output_bytes = memory.output_size_in_bytes;
    report.donated_bytes = memory.alias_size_in_bytes;
    report.temporary_bytes = memory.temp_size_in_bytes;
    report.code_bytes = memory.generated_code_size_in_bytes;
    report.peak_bytes = memory.peak_memory_in_bytes;
    auto cost = TPU_PJRT_ARGS(PJRT_Executable_GetCostAnalysis);
    cost.executable = executable;
    if (!TPU_PJRT_CALL(*api_, PJRT_Executable_GetCostAnalysis, cost).ok()) return absl::OkStatus();  // not every plugin
    for (size_t i = 0; i < cost.num_properties; ++i) {
      const PJRT_NamedValue& p = cost.properties[i];
      if (p.type == PJRT_NamedValue_kFloat) report.costs[std::string(p.name, p.name_size)] = p.float_value;
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<const Api> api_;
  PJRT_TopologyDescription* const topology_;
};

std::string Text(const PJRT_NamedValue& value) {
  switch (value.type) {
    case PJRT_NamedValue_kString:
      return std::string(value.string_value, value.value_size);
    case PJRT_NamedValue_kInt64:
      return absl::StrCat(value.int64_value);
    case PJRT_NamedValue_kInt64List:
      return absl::StrJoin(absl::MakeConstSpan(value.int64_array_value, value.value_size), ".");
    case PJRT_NamedValue_kFloat:
      return absl::StrCat(value.float_value);
    case PJRT_NamedValue_kBool:
      return value.bool_value ? "true" : "false";
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Topology>> MakeTopology(const std::string& plugin, const std::string& name,
                                                       const std::string& options) {
  absl::StatusOr<std::shared_ptr<const Api>> api = Api::Load(plugin);
  if (!api.ok()) return api.status();
  const PluginOptions own(options);
  auto args = TPU_PJRT_ARGS(PJRT_TopologyDescription_Create);
  args.topology_name = name.data();
  args.topology_name_size = name.size();
  args.create_options = own.values().data();
  args.num_options = own.values().size();
  if (absl::Status s = TPU_PJRT_CALL(**api, PJRT_TopologyDescription_Create, args); !s.ok()) return s;
  return std::make_unique<PluginTopology>(*std::move(api), args.topology);
}

absl::StatusOr<std::map<std::string, std::string>> DescribePlugin(const std::string& plugin, int timeout_seconds) {
  auto found = std::make_shared<std::map<std::string, std::string>>();
  absl::Status status = Guarded(plugin, timeout_seconds, [found, plugin] {
    absl::StatusOr<std::shared_ptr<const Api>> api = Api::Load(plugin);
    if (!api.ok()) return api.status();
    (*found)["pjrt_api_version"] = (*api)->Version();
    auto args = TPU_PJRT_ARGS(PJRT_Plugin_Attributes);
    absl::Status listed = TPU_PJRT_CALL(**api, PJRT_Plugin_Attributes, args);
    for (size_t i = 0; listed.ok() && i < args.num_attributes; ++i) {
      const PJRT_NamedValue& a = args.attributes[i];
      (*found)[std::string(a.name, a.name_size)] = Text(a);
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return *found;
}

}  // namespace tpu::pjrt

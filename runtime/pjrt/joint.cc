#include "runtime/pjrt/joint.h"

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tpu::pjrt {
namespace {

class JointModule final : public JointExecutable {
 public:
  JointModule(std::vector<std::shared_ptr<Place>> places, PJRT_LoadedExecutable* loaded, std::vector<TensorType> inputs,
              std::vector<TensorType> outputs)
      : places_(std::move(places)), loaded_(loaded), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}
  ~JointModule() override { client().Destroy(loaded_); }

  absl::Status Launch(absl::Span<const Share> shares) override;

 private:
  using Lists = std::vector<std::vector<PJRT_Buffer*>>;  // by device

  Client& client() const { return *places_.front()->client; }
  absl::Status Execute(const std::vector<Operands>& in, Lists& results, std::vector<PJRT_Event*>& done) const;

  const std::vector<std::shared_ptr<Place>> places_;
  PJRT_LoadedExecutable* const loaded_;
  const std::vector<TensorType> inputs_, outputs_;
};

absl::Status JointModule::Launch(absl::Span<const Share> shares) {
  std::vector<Operands> in(places_.size());
  FlightRefs before;  // what a device reads, the others get
  FlightRef failed;
  for (size_t d = 0; d < places_.size(); ++d) {
    const Share& share = shares[d];
    if (share.inputs.size() != inputs_.size() || share.outputs.size() != outputs_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("a joint launch with ", share.inputs.size(), " inputs and ",
                                                     share.outputs.size(), " outputs of a program with ",
                                                     inputs_.size(), " and ", outputs_.size()));
    }
    if (absl::Status s = in[d].Collect(places_[d], share.inputs, inputs_, inputs_); !s.ok()) return s;
    before.insert(before.end(), in[d].before.begin(), in[d].before.end());
    if (in[d].failed != nullptr) failed = in[d].failed;
  }
  Lists results(places_.size(), std::vector<PJRT_Buffer*>(outputs_.size(), nullptr));
  std::vector<PJRT_Event*> done(places_.size(), nullptr);
  std::vector<BufferRef> made;
  FlightRefs flights;
  for (const auto& place : places_) flights.push_back(std::make_shared<Flight>(place->client, before, Explainer()));
  // What fails on one device is the error of all results.
  const FlightRef all = failed != nullptr ? failed : std::make_shared<Flight>(places_[0]->client, flights, Explainer());
  for (size_t d = 0; d < places_.size(); ++d) {
    for (const TensorType& type : outputs_) {
      const int64_t bytes = failed != nullptr ? 0 : static_cast<int64_t>(type.bytes());
      if (absl::Status s = places_[d]->memory->Take(bytes); !s.ok()) return s;
      made.push_back(MakeBuffer(places_[d], nullptr, type, type, bytes, all));
    }
  }
  if (failed == nullptr) {
    if (absl::Status s = Execute(in, results, done); !s.ok()) {
      for (const auto& list : results) {
        for (PJRT_Buffer* result : list) {
          if (result != nullptr) client().Destroy(result);
        }
      }
      return s;
    }
  }
  for (size_t d = 0, next = 0; d < places_.size(); ++d) {
    for (size_t o = 0; o < outputs_.size(); ++o, ++next) {
      HeldBy(made[next]).handle = results[d][o];
      shares[d].outputs[o] = std::move(made[next]);
    }
    if (failed != nullptr) continue;
    flights[d]->Begin(done[d], nullptr);
    places_[d]->flights.Add(flights[d], shares[d].stream);
  }
  return absl::OkStatus();
}

absl::Status JointModule::Execute(const std::vector<Operands>& in, Lists& results,
                                  std::vector<PJRT_Event*>& done) const {
  std::vector<PJRT_Buffer* const*> arguments;
  std::vector<PJRT_Buffer**> outputs;
  for (size_t d = 0; d < places_.size(); ++d) {
    arguments.push_back(in[d].handles.data());
    outputs.push_back(results[d].data());
  }
  auto options = Sized<PJRT_ExecuteOptions>(PJRT_ExecuteOptions_STRUCT_SIZE);
  auto args = TPU_PJRT_ARGS(PJRT_LoadedExecutable_Execute);
  args.executable = loaded_;
  args.options = &options;
  args.argument_lists = arguments.data();
  args.num_devices = places_.size();
  args.num_args = inputs_.size();
  args.output_lists = outputs.data();
  args.device_complete_events = done.data();
  std::lock_guard lock(client().joint_launch());
  return TPU_PJRT_CALL(client().api(), PJRT_LoadedExecutable_Execute, args);
}

}  // namespace

absl::StatusOr<std::unique_ptr<JointExecutable>> LoadJointModule(std::vector<std::shared_ptr<Place>> places,
                                                                 const Program& program) {
  absl::StatusOr<Module> module = ModuleOf(program);
  if (!module.ok()) return module.status();
  for (size_t o = 0; o < module->outputs.size(); ++o) {
    if (module->checked || module->outputs[o] != Module::Output{false, static_cast<uint32_t>(o)}) {
      return absl::InvalidArgumentError("stablehlo program: several devices run only what computes each output");
    }
  }
  std::vector<PJRT_Device*> devices;
  devices.reserve(places.size());
  for (const auto& place : places) devices.push_back(place->device);
  absl::StatusOr<PJRT_LoadedExecutable*> loaded = places.front()->client->CompileAndLoadJoint(module->text, devices);
  if (!loaded.ok()) return loaded.status();
  return std::make_unique<JointModule>(std::move(places), *loaded, program.inputs, program.outputs);
}

}  // namespace tpu::pjrt

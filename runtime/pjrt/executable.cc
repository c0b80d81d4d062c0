#include "runtime/pjrt/executable.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

namespace tpu::pjrt {
namespace {

constexpr size_t kMaxScalars = 1024;

class ModuleExecutable final : public Executable {
 public:
  ModuleExecutable(std::shared_ptr<Place> place, PJRT_LoadedExecutable* loaded, Module module,
                   std::vector<TensorType> inputs, std::vector<TensorType> outputs)
      : place_(std::move(place)),
        loaded_(loaded),
        module_(std::move(module)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)) {}
  ~ModuleExecutable() override {
    if (loaded_ != nullptr) place_->client->Destroy(loaded_);
  }

  absl::Status Launch(absl::Span<Argument> inputs, absl::Span<BufferRef> outputs, const NodeRunner& run_node,
                      const Explainer& explain) override;
  int calls_per_launch() const override { return 0; }

 private:
  // What one launch has: every input as a buffer, which of them are given up, and what comes back.
  struct Frame {
    Operands in;
    absl::InlinedVector<int64_t, 16> kept;    // inputs that must stay
    absl::InlinedVector<int64_t, 8> charges;  // of each result
    absl::InlinedVector<PJRT_Buffer*, 8> results;
    PJRT_Event* done = nullptr;
  };

  absl::Status Charge(absl::Span<Argument> inputs, Frame& frame) const;
  absl::Status Execute(Frame& frame) const;
  const TensorType& ResultType(uint32_t result) const;

  const std::shared_ptr<Place> place_;
  PJRT_LoadedExecutable* const loaded_;  // null: every output is an input
  const Module module_;
  const std::vector<TensorType> inputs_, outputs_;
};

bool GivenUp(const Argument& argument) {
  return argument.donated && argument.buffer && argument.buffer->ref_count() == 1;
}

absl::Status ModuleExecutable::Launch(absl::Span<Argument> inputs, absl::Span<BufferRef> outputs, const NodeRunner&,
                                      const Explainer& explain) {
  if (inputs.size() != inputs_.size() || outputs.size() != outputs_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a launch with ", inputs.size(), " inputs and ", outputs.size(),
                                                   " outputs of a program with ", inputs_.size(), " and ",
                                                   outputs_.size()));
  }
  Frame frame;
  if (absl::Status s = frame.in.Collect(*place_, inputs, inputs_); !s.ok()) return s;
  for (const Module::Output& output : module_.outputs) {
    if (output.is_input && inputs[output.index].buffer) frame.in.held[output.index] = inputs[output.index].buffer;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!GivenUp(inputs[i])) frame.kept.push_back(static_cast<int64_t>(i));
  }
  std::vector<BufferRef> results(module_.results);
  if (frame.in.failed != nullptr) {
    for (uint32_t r = 0; r < module_.results; ++r) {
      results[r] = MakeBuffer(place_, nullptr, ResultType(r), 0, frame.in.failed);
    }
  } else if (module_.results > 0) {
    if (absl::Status s = Charge(inputs, frame); !s.ok()) return s;
    const absl::Status status = Execute(frame);
    const auto flight = std::make_shared<Flight>(place_->client, std::move(frame.in.before), explain);
    for (uint32_t r = 0; r < module_.results; ++r) {  // after an error too: what is charged goes back with them
      results[r] = MakeBuffer(place_, frame.results[r], ResultType(r), frame.charges[r], flight);
    }
    if (!status.ok()) {
      for (Argument& input : inputs) {
        if (GivenUp(input)) input.buffer = nullptr;
      }
      return status;
    }
    flight->Begin(frame.done, module_.checked ? frame.results.back() : nullptr);
    place_->flights.Add(flight);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Module::Output& output = module_.outputs[i];
    outputs[i] = output.is_input ? frame.in.held[output.index] : results[output.index];
  }
  return absl::OkStatus();
}

// Memory for the results that are not written over an input.
absl::Status ModuleExecutable::Charge(absl::Span<Argument> inputs, Frame& frame) const {
  int64_t fresh = 0;
  for (uint32_t r = 0; r < module_.results; ++r) {
    const int64_t donor = module_.donors[r];
    const bool over = donor >= 0 && GivenUp(inputs[donor]);
    frame.charges.push_back(over ? 0 : static_cast<int64_t>(ResultType(r).bytes()));
    fresh += frame.charges.back();
  }
  if (absl::Status s = place_->memory->Take(fresh); !s.ok()) return s;
  for (uint32_t r = 0; r < module_.results; ++r) {
    const int64_t donor = module_.donors[r];
    if (donor >= 0 && GivenUp(inputs[donor])) {
      frame.charges[r] = std::exchange(HeldBy(inputs[donor].buffer).charged, 0);
    }
  }
  return absl::OkStatus();
}

absl::Status ModuleExecutable::Execute(Frame& frame) const {
  frame.results.assign(module_.results + (module_.checked ? 1 : 0), nullptr);
  auto options = Sized<PJRT_ExecuteOptions>(PJRT_ExecuteOptions_STRUCT_SIZE);
  options.non_donatable_input_indices = frame.kept.data();
  options.num_non_donatable_input_indices = frame.kept.size();
  PJRT_Buffer* const* arguments = frame.in.handles.data();
  PJRT_Buffer** results = frame.results.data();
  auto args = TPU_PJRT_ARGS(PJRT_LoadedExecutable_Execute);
  args.executable = loaded_;
  args.options = &options;
  args.argument_lists = &arguments;
  args.num_devices = 1;
  args.num_args = frame.in.handles.size();
  args.output_lists = &results;
  args.device_complete_events = &frame.done;
  args.execute_device = place_->device;
  return TPU_PJRT_CALL(place_->client->api(), PJRT_LoadedExecutable_Execute, args);
}

const TensorType& ModuleExecutable::ResultType(uint32_t result) const {
  size_t i = 0;
  while (module_.outputs[i] != Module::Output{false, result}) ++i;
  return outputs_[i];
}

}  // namespace

absl::Status Operands::Collect(Place& place, absl::Span<const Argument> inputs, absl::Span<const TensorType> types) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].buffer) {
      absl::StatusOr<BufferRef> scalar = place.Scalar(types[i].dtype, inputs[i].scalar_bits);
      if (!scalar.ok()) return scalar.status();
      handles.push_back(HeldBy(*scalar).handle);
      held.push_back(*std::move(scalar));
      continue;
    }
    const Held& value = HeldBy(inputs[i].buffer);
    if (value.type != types[i]) {
      return absl::InvalidArgumentError(absl::StrCat("launch: input ", i, " is ", value.type.ToString(),
                                                     ", the program takes ", types[i].ToString()));
    }
    handles.push_back(value.handle);
    held.push_back(nullptr);
    if (value.maker == nullptr || value.maker->succeeded()) continue;
    if (value.maker->failed()) {
      failed = value.maker;
    } else if (std::find(before.begin(), before.end(), value.maker) == before.end()) {
      before.push_back(value.maker);
    }
  }
  return absl::OkStatus();
}

Held::~Held() {
  if (handle != nullptr) place->client->Destroy(handle);
  place->memory->Free(charged);
}

BufferRef MakeBuffer(std::shared_ptr<Place> place, PJRT_Buffer* handle, const TensorType& type, int64_t charged,
                     FlightRef maker) {
  auto* held = new Held{std::move(place), handle, type, charged, std::move(maker)};
  return MakeRef<Buffer>(held, type.bytes(), [held] { delete held; });
}

absl::StatusOr<BufferRef> Place::Scalar(DType dtype, uint64_t bits) {
  std::lock_guard lock(mutex_);
  if (auto it = scalars_.find({dtype, bits}); it != scalars_.end()) return it->second;
  const TensorType type{dtype, {}};
  absl::StatusOr<PJRT_Buffer*> handle = client->Upload(&bits, type, device);
  if (!handle.ok()) return handle.status();
  if (scalars_.size() >= kMaxScalars) scalars_.clear();
  // A place of its own, without this table: the table's buffers must not keep the table alive.
  auto bare = std::make_shared<Place>();
  bare->client = client;
  bare->device = device;
  bare->memory = memory;
  return scalars_[{dtype, bits}] = MakeBuffer(std::move(bare), *handle, type, 0);
}

absl::StatusOr<Module> ModuleOf(const Program& program) {
  if (program.format != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("a PJRT device loads programs of format '", kFormat, "', not '", program.format, "'"));
  }
  absl::StatusOr<Module> module = Module::Parse(program.bytes);
  if (!module.ok()) return module.status();
  bool sound = module->outputs.size() == program.outputs.size();
  for (const Module::Output& output : module->outputs) {
    sound &= !output.is_input || output.index < program.inputs.size();
  }
  for (int64_t donor : module->donors) sound &= donor < static_cast<int64_t>(program.inputs.size());
  if (!sound) return absl::InvalidArgumentError("stablehlo program: does not fit its own signature");
  return module;
}

absl::StatusOr<std::unique_ptr<Executable>> LoadModule(std::shared_ptr<Place> place, const Program& program) {
  absl::StatusOr<Module> module = ModuleOf(program);
  if (!module.ok()) return module.status();
  PJRT_LoadedExecutable* loaded = nullptr;
  if (module->results > 0) {
    Client& client = *place->client;
    absl::StatusOr<PJRT_LoadedExecutable*> made =
        module->executable.empty() ? client.CompileAndLoad(module->text) : client.Load(module->executable);
    if (!made.ok()) return made.status();
    loaded = *made;
  }
  std::string().swap(module->text);
  std::string().swap(module->executable);
  return std::make_unique<ModuleExecutable>(std::move(place), loaded, *std::move(module), program.inputs,
                                            program.outputs);
}

}  // namespace tpu::pjrt

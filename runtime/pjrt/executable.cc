#include "runtime/pjrt/executable.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

namespace tpu::pjrt {
namespace {

constexpr size_t kMaxScalars = 1024;

// What the plugin has compiled, and how it takes and gives values.
struct Loaded {
  std::shared_ptr<Place> place;
  Module module;
  PJRT_LoadedExecutable* handle = nullptr;  // null: every output is an input
  std::vector<TensorType> inputs, outputs;

  ~Loaded() {
    if (handle != nullptr) place->client->Destroy(handle);
  }
};

absl::StatusOr<std::shared_ptr<const Loaded>> LoadOn(std::shared_ptr<Place> place, Module module,
                                                     const Program& program) {
  auto loaded = std::make_shared<Loaded>();
  if (module.results > 0) {
    Client& client = *place->client;
    absl::StatusOr<PJRT_LoadedExecutable*> made =
        module.executable.empty() ? client.CompileAndLoad(module.text) : client.Load(module.executable);
    if (!made.ok()) return made.status();
    loaded->handle = *made;
  }
  std::string().swap(module.text);
  std::string().swap(module.executable);
  loaded->place = std::move(place);
  loaded->module = std::move(module);
  loaded->inputs = program.inputs;
  loaded->outputs = program.outputs;
  return loaded;
}

class ModuleExecutable final : public Executable {
 public:
  // `sizes`: the module's last arguments.
  ModuleExecutable(std::shared_ptr<const Loaded> loaded, std::vector<TensorType> inputs,
                   std::vector<TensorType> outputs, const SizePoint& sizes)
      : loaded_(std::move(loaded)),
        place_(loaded_->place),
        module_(loaded_->module),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)) {
    for (const int64_t size : sizes) sizes_.push_back({nullptr, static_cast<uint64_t>(size), false});
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
  size_t OutputOf(uint32_t result) const;
  BufferRef Make(uint32_t result, PJRT_Buffer* handle, int64_t charged, FlightRef maker) const {
    const size_t i = OutputOf(result);
    return MakeBuffer(place_, handle, outputs_[i], loaded_->outputs[i], charged, std::move(maker));
  }

  const std::shared_ptr<const Loaded> loaded_;
  const std::shared_ptr<Place>& place_;
  const Module& module_;
  const std::vector<TensorType> inputs_, outputs_;
  std::vector<Argument> sizes_;
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
  const auto stored = absl::MakeConstSpan(loaded_->inputs);
  const auto sizes = stored.subspan(inputs_.size());
  if (absl::Status s = frame.in.Collect(place_, inputs, inputs_, stored); !s.ok()) return s;
  if (absl::Status s = frame.in.Collect(place_, sizes_, sizes, sizes); !s.ok()) return s;
  std::vector<BufferRef> passed(outputs.size());  // inputs that are outputs
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto [is_input, index] = module_.outputs[i];
    if (is_input) passed[i] = inputs[index].buffer ? inputs[index].buffer : frame.in.held[index];
  }
  for (size_t i = 0; i < stored.size(); ++i) {
    if (i >= inputs.size() || !GivenUp(inputs[i])) frame.kept.push_back(static_cast<int64_t>(i));
  }
  std::vector<BufferRef> results(module_.results);
  if (frame.in.failed != nullptr) {
    for (uint32_t r = 0; r < module_.results; ++r) {
      results[r] = Make(r, nullptr, 0, frame.in.failed);
    }
  } else if (module_.results > 0) {
    if (absl::Status s = Charge(inputs, frame); !s.ok()) return s;
    const absl::Status status = Execute(frame);
    const auto flight = std::make_shared<Flight>(place_->client, std::move(frame.in.before), explain);
    for (uint32_t r = 0; r < module_.results; ++r) {  // after an error too: what is charged goes back with them
      results[r] = Make(r, frame.results[r], frame.charges[r], flight);
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
    outputs[i] = output.is_input ? std::move(passed[i]) : results[output.index];
  }
  return absl::OkStatus();
}

// Memory for the results that are not written over an input.
absl::Status ModuleExecutable::Charge(absl::Span<Argument> inputs, Frame& frame) const {
  int64_t fresh = 0;
  for (uint32_t r = 0; r < module_.results; ++r) {
    const int64_t donor = module_.donors[r];
    const bool over = donor >= 0 && GivenUp(inputs[donor]);
    frame.charges.push_back(over ? 0 : static_cast<int64_t>(loaded_->outputs[OutputOf(r)].bytes()));
    fresh += frame.charges.back();
  }
  if (absl::Status s = place_->memory->Take(fresh); !s.ok()) return s;
  for (uint32_t r = 0; r < module_.results; ++r) {
    const int64_t donor = module_.donors[r];
    if (donor >= 0 && GivenUp(inputs[donor])) {
      const BufferRef& other = frame.in.held[donor];  // the same value, stored as the program takes it
      frame.charges[r] = std::exchange(HeldBy(other ? other : inputs[donor].buffer).charged, 0);
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
  args.executable = loaded_->handle;
  args.options = &options;
  args.argument_lists = &arguments;
  args.num_devices = 1;
  args.num_args = frame.in.handles.size();
  args.output_lists = &results;
  args.device_complete_events = &frame.done;
  args.execute_device = place_->device;
  return TPU_PJRT_CALL(place_->client->api(), PJRT_LoadedExecutable_Execute, args);
}

size_t ModuleExecutable::OutputOf(uint32_t result) const {
  size_t i = 0;
  while (module_.outputs[i] != Module::Output{false, result}) ++i;
  return i;
}

class PaddedFamily final : public ExecutableFamily {
 public:
  PaddedFamily(std::shared_ptr<const Loaded> loaded, const PaddedModule& padded)
      : loaded_(std::move(loaded)), range_(padded.range), inputs_(padded.inputs), outputs_(padded.outputs) {}
  absl::StatusOr<std::unique_ptr<Executable>> At(absl::Span<const int64_t> sizes) override {
    if (!range_.Holds(sizes)) return absl::OutOfRangeError("sizes that the program does not serve");
    const SizePoint point(sizes.begin(), sizes.end());
    return std::make_unique<ModuleExecutable>(loaded_, TypesAt(loaded_->inputs, inputs_, point),
                                              TypesAt(loaded_->outputs, outputs_, point), point);
  }

 private:
  const std::shared_ptr<const Loaded> loaded_;
  const SizeRange range_;
  const std::vector<PaddedDims> inputs_, outputs_;
};

// The same value, stored as another type.
absl::StatusOr<BufferRef> StoredAs(const std::shared_ptr<Place>& place, const Held& value, const TensorType& stored) {
  std::string elements(value.type.bytes(), '\0'), larger;
  if (absl::Status s = ToHost(value, elements.data()); !s.ok()) return s;
  if (stored != value.type) {
    larger.resize(stored.bytes());
    CopyCorner(value.type, elements.data(), stored, larger.data());
    elements.swap(larger);
  }
  const auto bytes = static_cast<int64_t>(stored.bytes());
  if (absl::Status s = place->memory->Take(bytes); !s.ok()) return s;
  absl::StatusOr<PJRT_Buffer*> handle = place->client->Upload(elements.data(), stored, place->device);
  if (handle.ok()) return MakeBuffer(place, *handle, value.type, stored, bytes);
  place->memory->Free(bytes);
  return handle.status();
}

}  // namespace

absl::Status Operands::Collect(const std::shared_ptr<Place>& place, absl::Span<const Argument> inputs,
                               absl::Span<const TensorType> types, absl::Span<const TensorType> stored) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].buffer) {
      absl::StatusOr<BufferRef> scalar = place->Scalar(types[i].dtype, inputs[i].scalar_bits);
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
    if (value.stored != stored[i] && (value.maker == nullptr || value.maker->Wait().ok())) {
      absl::StatusOr<BufferRef> other = StoredAs(place, value, stored[i]);
      if (!other.ok()) return other.status();
      handles.push_back(HeldBy(*other).handle);
      held.push_back(*std::move(other));
      continue;
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

BufferRef MakeBuffer(std::shared_ptr<Place> place, PJRT_Buffer* handle, const TensorType& type,
                     const TensorType& stored, int64_t charged, FlightRef maker) {
  auto* held = new Held{std::move(place), handle, type, stored, charged, std::move(maker)};
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
  return scalars_[{dtype, bits}] = MakeBuffer(std::move(bare), *handle, type, type, 0);
}

absl::Status ToHost(const Held& held, void* destination) {
  const Client& client = *held.place->client;
  absl::InlinedVector<int64_t, 8> minor_to_major;
  for (int64_t d = static_cast<int64_t>(held.type.dims.size()); d-- > 0;) minor_to_major.push_back(d);
  auto layout = Sized<PJRT_Buffer_MemoryLayout>(PJRT_Buffer_MemoryLayout_STRUCT_SIZE);
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled = Sized<PJRT_Buffer_MemoryLayout_Tiled>(PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE);
  layout.tiled.minor_to_major = minor_to_major.data();
  layout.tiled.minor_to_major_size = minor_to_major.size();
  const bool whole = held.stored == held.type;
  std::string padded(whole ? 0 : held.stored.bytes(), '\0');
  auto args = TPU_PJRT_ARGS(PJRT_Buffer_ToHostBuffer);
  args.src = held.handle;
  args.host_layout = &layout;
  args.dst = whole ? destination : padded.data();
  args.dst_size = held.stored.bytes();
  if (absl::Status s = TPU_PJRT_CALL(client.api(), PJRT_Buffer_ToHostBuffer, args); !s.ok()) return s;
  if (absl::Status s = client.api().Await(args.event); !s.ok()) return s;
  if (!whole) CopyCorner(held.stored, padded.data(), held.type, destination);
  return absl::OkStatus();
}

namespace {

// Whether what a module takes and returns is the program's.
bool Fits(const Module& module, const Program& program, size_t sizes) {
  const size_t inputs = program.inputs.size() - sizes;
  bool sound = module.outputs.size() == program.outputs.size();
  for (const Module::Output& output : module.outputs) sound &= !output.is_input || output.index < inputs;
  for (int64_t donor : module.donors) sound &= donor < static_cast<int64_t>(inputs);
  return sound;
}

absl::Status CheckFormat(const Program& program, const char* format) {
  if (program.format == format) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a PJRT device loads programs of format '", format, "' here, not '", program.format, "'"));
}

}  // namespace

absl::StatusOr<Module> ModuleOf(const Program& program) {
  if (absl::Status s = CheckFormat(program, kFormat); !s.ok()) return s;
  absl::StatusOr<Module> module = Module::Parse(program.bytes);
  if (!module.ok()) return module.status();
  if (!Fits(*module, program, 0)) {
    return absl::InvalidArgumentError("stablehlo program: does not fit its own signature");
  }
  return module;
}

absl::StatusOr<PaddedModule> PaddedModuleOf(const Program& program) {
  if (absl::Status s = CheckFormat(program, kPaddedFormat); !s.ok()) return s;
  absl::StatusOr<PaddedModule> padded = PaddedModule::Parse(program.bytes);
  if (!padded.ok()) return padded.status();
  const auto fit = [](absl::Span<const TensorType> types, const std::vector<PaddedDims>& dims, size_t sizes) {
    bool sound = types.size() == dims.size() + sizes;
    for (size_t v = 0; sound && v < dims.size(); ++v) sound = types[v].dims.size() == dims[v].size();
    return sound;
  };
  const size_t sizes = padded->range.most.size();
  if (!fit(program.inputs, padded->inputs, sizes) || !fit(program.outputs, padded->outputs, 0) ||
      !Fits(padded->module, program, sizes)) {
    return absl::InvalidArgumentError("padded stablehlo program: does not fit its own signature");
  }
  return padded;
}

absl::StatusOr<std::unique_ptr<Executable>> LoadModule(std::shared_ptr<Place> place, const Program& program) {
  absl::StatusOr<Module> module = ModuleOf(program);
  if (!module.ok()) return module.status();
  absl::StatusOr<std::shared_ptr<const Loaded>> loaded = LoadOn(std::move(place), *std::move(module), program);
  if (!loaded.ok()) return loaded.status();
  return std::make_unique<ModuleExecutable>(*std::move(loaded), program.inputs, program.outputs, SizePoint());
}

absl::StatusOr<std::unique_ptr<ExecutableFamily>> LoadPaddedModule(std::shared_ptr<Place> place,
                                                                   const Program& program) {
  absl::StatusOr<PaddedModule> padded = PaddedModuleOf(program);
  if (!padded.ok()) return padded.status();
  absl::StatusOr<std::shared_ptr<const Loaded>> loaded = LoadOn(std::move(place), padded->module, program);
  if (!loaded.ok()) return loaded.status();
  return std::make_unique<PaddedFamily>(*std::move(loaded), *padded);
}

}  // namespace tpu::pjrt

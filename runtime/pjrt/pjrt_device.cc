#include "runtime/pjrt/pjrt_device.h"

#include <sys/stat.h>

#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/flags.h"
#include "runtime/machine.h"
#include "runtime/pjrt/client.h"
#include "runtime/pjrt/executable.h"
#include "runtime/pjrt/joint.h"
#include "runtime/pjrt/memory.h"
#include "runtime/pjrt/module.h"

namespace tpu::pjrt {
namespace {

// Versions that plugins tell may be the same for many builds: the file's size and time, too.
std::string BuildOf(const std::string& path) {
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0) return "";
  return absl::StrCat(file.st_size, ".", file.st_mtime);
}

// Not every plugin counts.
std::optional<PJRT_Device_MemoryStats_Args> StatsOf(const Client& client, PJRT_Device* device) {
  auto args = TPU_PJRT_ARGS(PJRT_Device_MemoryStats);
  args.device = device;
  if (!TPU_PJRT_CALL(client.api(), PJRT_Device_MemoryStats, args).ok()) return std::nullopt;
  return args;
}

class PjrtDevice final : public Device {
 public:
  PjrtDevice(int index, std::shared_ptr<Place> place) : index_(index), place_(std::move(place)) {}

  int index() const override { return index_; }
  bool host_addressable() const override { return false; }

  std::string Describe() const override {
    const Client& client = *place_->client;
    return absl::StrFormat("tpu:%d: %s (%s), PJRT API %s of %s, %.1f GiB", index_, client.KindOf(place_->device),
                           client.platform(), client.api().Version(), client.api().path(),
                           static_cast<double>(memory_stats().limit_bytes) / (1 << 30));
  }

  std::string Target() const override {
    const Client& client = *place_->client;
    return absl::StrCat("pjrt:", client.platform(), ":", client.platform_version(), ":", client.KindOf(place_->device),
                        ":", BuildOf(client.api().path()), ":", absl::BytesToHexString(client.compile_options()), ":",
                        Flags::Get().xla_flags, ":", client.platform() == "cpu" ? CpuInfo("flags") : "");
  }

  absl::StatusOr<BufferRef> Allocate(size_t bytes) override {
    return MakeValue({DType::kUInt8, {static_cast<int64_t>(bytes)}}, nullptr);
  }

  absl::StatusOr<BufferRef> MakeValue(const TensorType& type, const void* source) override {
    const int64_t bytes = static_cast<int64_t>(type.bytes());
    if (absl::Status s = place_->memory->Take(bytes); !s.ok()) return s;
    absl::StatusOr<PJRT_Buffer*> handle = place_->client->Upload(source, type, place_->device);
    if (!handle.ok()) {
      place_->memory->Free(bytes);
      return handle.status();
    }
    return MakeBuffer(place_, *handle, type, type, bytes);
  }

  absl::Status CopyToHost(const BufferRef& source, void* destination, size_t bytes) override {
    if (!source) return absl::InvalidArgumentError("copy: no device buffer");
    if (bytes > source->bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("copy of ", bytes, " bytes, the device buffer has ", source->bytes()));
    }
    if (bytes == 0) return absl::OkStatus();
    if (absl::Status s = Wait(source); !s.ok()) return s;
    const Held& held = HeldBy(source);
    if (bytes == source->bytes()) return ToHost(held, destination);
    std::string whole(source->bytes(), '\0');
    if (absl::Status s = ToHost(held, whole.data()); !s.ok()) return s;
    std::memcpy(destination, whole.data(), bytes);
    return absl::OkStatus();
  }

  absl::Status Wait(const BufferRef& buffer) override {
    const FlightRef& maker = HeldBy(buffer).maker;
    return maker != nullptr ? maker->Wait() : absl::OkStatus();
  }
  void Synchronize(const Stream* stream) override { place_->flights.WaitForAll(stream); }
  bool Idle(const Stream* stream) override { return place_->flights.AllReady(stream); }

  absl::StatusOr<Program> Complete(Program program) override {
    if (program.format == kPaddedFormat) return Completed<PaddedModule>(std::move(program));
    return Completed<Module>(std::move(program));
  }

  absl::StatusOr<std::unique_ptr<Executable>> Load(const Program& program) override {
    return LoadModule(place_, program);
  }
  // XLA's code for CPUs is in this process, 7 to 14 mappings a program, more where it is large, and XLA crashes where
  // Linux gives no more of them. So many programs of fragments, and as many of single operations, leave half of them.
  size_t most_programs() const override {
    constexpr int64_t kMappings = 32;
    const Client& client = *place_->client;
    if (client.platform() != "cpu") return Device::most_programs();
    return static_cast<size_t>(MostMappings()) / kMappings / client.devices().size();
  }
  absl::StatusOr<std::unique_ptr<ExecutableFamily>> LoadFamily(const Program& program) override {
    return LoadPaddedModule(place_, program);
  }
  absl::StatusOr<std::unique_ptr<JointExecutable>> LoadJoint(const Program& program,
                                                             absl::Span<Device* const> devices) override {
    std::vector<std::shared_ptr<Place>> places;
    for (Device* device : devices) {
      const auto* peer = dynamic_cast<const PjrtDevice*>(device);
      if (peer == nullptr || peer->place_->client != place_->client) return Device::LoadJoint(program, devices);
      places.push_back(peer->place_);
    }
    return LoadJointModule(std::move(places), program);
  }

  // What buffers of ours hold is counted here; what the plugin took for them, and for the rest, it may tell.
  MemoryStats memory_stats() const override {
    MemoryStats stats = place_->memory->stats();
    const std::optional<PJRT_Device_MemoryStats_Args> told = StatsOf(*place_->client, place_->device);
    if (told) stats.reserved_bytes = told->pool_bytes_is_set ? told->pool_bytes : told->bytes_in_use;
    if (told && told->peak_bytes_in_use_is_set) stats.peak_reserved_bytes = told->peak_bytes_in_use;
    return stats;
  }
  void ResetPeakMemoryStats() override { place_->memory->ResetPeak(); }
  void AllowMemory(int64_t bytes) override { place_->memory->Allow(bytes); }
  void EmptyCache() override {}

 private:
  static Module& In(Module& module) { return module; }
  static Module& In(PaddedModule& padded) { return padded.module; }

  template <typename Format>
  absl::StatusOr<Program> Completed(Program program) {
    absl::StatusOr<Format> parsed = Format::Parse(program.bytes);
    if (!parsed.ok()) return parsed.status();
    Module& module = In(*parsed);
    if (module.results > 0 && module.executable.empty()) {
      absl::StatusOr<std::string> executable = place_->client->Compile(module.text);
      if (!executable.ok()) return executable.status();
      module.executable = *std::move(executable);
    }
    program.bytes = parsed->Serialize();
    return program;
  }

  const int index_;
  const std::shared_ptr<Place> place_;
};

// The size that the plugin tells, or this machine's.
int64_t MemoryOf(const Client& client, PJRT_Device* device) {
  const std::optional<PJRT_Device_MemoryStats_Args> told = StatsOf(client, device);
  if (told && told->bytes_limit_is_set) return told->bytes_limit;
  return UsableMemory();
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Device>>> MakeDevices(const Config& config) {
  auto client = std::make_shared<std::shared_ptr<Client>>();
  absl::Status status =
      Guarded(config.plugin, config.timeout_seconds, [client, path = config.plugin, options = config.options] {
        absl::StatusOr<std::shared_ptr<const Api>> api = Api::Load(path);
        if (!api.ok()) return api.status();
        absl::StatusOr<std::shared_ptr<Client>> made = Client::Create(*api, options);
        if (!made.ok()) return made.status();
        *client = *std::move(made);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  const std::vector<PJRT_Device*>& found = (*client)->devices();
  if (config.devices > static_cast<int>(found.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("PJRT plugin ", config.plugin, ": has ", found.size(), " devices, not ", config.devices));
  }
  const size_t count = config.devices > 0 ? static_cast<size_t>(config.devices) : found.size();
  std::vector<std::unique_ptr<Device>> devices;
  for (size_t i = 0; i < count; ++i) {
    auto place = std::make_shared<Place>();
    place->client = *client;
    place->device = found[i];
    const int64_t limit = config.memory_bytes > 0 ? config.memory_bytes : MemoryOf(**client, found[i]);
    place->memory = std::make_shared<Memory>(absl::StrCat("tpu:", i), limit);
    devices.push_back(std::make_unique<PjrtDevice>(static_cast<int>(i), std::move(place)));
  }
  return devices;
}

}  // namespace tpu::pjrt

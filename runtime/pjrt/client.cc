#include "runtime/pjrt/client.h"

#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tpu::pjrt {
namespace {

// CompileOptionsProto: executable_build_options (3) {num_replicas (4): 1, num_partitions (5): 1},
// compile_portable_executable (4): true, so that one executable runs on any device of the client.
constexpr std::string_view kPortable("\x1a\x04\x20\x01\x28\x01\x20\x01", 8);

// env_option_overrides (7): {key (1), value (2): {bool_field (2): false}}.
std::string SwitchedOff(const std::string& flag) {
  const std::string entry =
      absl::StrCat(std::string("\x0a") + static_cast<char>(flag.size()), flag, std::string("\x12\x02\x10\x00", 4));
  return absl::StrCat(std::string("\x3a") + static_cast<char>(entry.size()), entry);
}

// XLA's CPU compiler keeps the right operand of a product packed by its address: of two operands that lie at one place
// one after the other the second is never seen. Its quick minimum and maximum lose NaN. With excess precision it leaves
// out the rounding of a 16-bit result that is converted next.
std::string CompileOptionsFor(const std::string& platform) {
  if (platform != "cpu") return std::string(kPortable);
  return absl::StrCat(std::string(kPortable), SwitchedOff("xla_cpu_use_xnnpack"),
                      SwitchedOff("xla_cpu_enable_fast_min_max"), SwitchedOff("xla_allow_excess_precision"));
}

struct NamedOption {
  std::string name, text;
  PJRT_NamedValue value;
};

std::vector<NamedOption> ParseOptions(const std::string& options) {
  std::vector<NamedOption> parsed;
  for (absl::string_view item : absl::StrSplit(options, ',', absl::SkipWhitespace())) {
    std::pair<std::string, std::string> parts = absl::StrSplit(item, absl::MaxSplits('=', 1));
    parsed.push_back({parts.first, parts.second, Sized<PJRT_NamedValue>(PJRT_NamedValue_STRUCT_SIZE)});
  }
  for (NamedOption& option : parsed) {
    PJRT_NamedValue& v = option.value;
    v.name = option.name.data();
    v.name_size = option.name.size();
    v.value_size = 1;
    if (option.text == "true" || option.text == "false") {
      v.type = PJRT_NamedValue_kBool;
      v.bool_value = option.text == "true";
    } else if (absl::SimpleAtoi(option.text, &v.int64_value)) {
      v.type = PJRT_NamedValue_kInt64;
    } else {
      v.type = PJRT_NamedValue_kString;
      v.string_value = option.text.data();
      v.value_size = option.text.size();
    }
  }
  return parsed;
}

}  // namespace

PJRT_Program ProgramOf(const std::string& text) {
  static constexpr std::string_view kMlir = "mlir";
  auto program = Sized<PJRT_Program>(PJRT_Program_STRUCT_SIZE);
  program.code = const_cast<char*>(text.data());
  program.code_size = text.size();
  program.format = kMlir.data();
  program.format_size = kMlir.size();
  return program;
}

PJRT_Buffer_Type BufferType(DType dtype) {
  constexpr PJRT_Buffer_Type kTypes[kNumDTypes] = {
      PJRT_Buffer_Type_PRED, PJRT_Buffer_Type_U8,  PJRT_Buffer_Type_S8,  PJRT_Buffer_Type_S16, PJRT_Buffer_Type_S32,
      PJRT_Buffer_Type_S64,  PJRT_Buffer_Type_U16, PJRT_Buffer_Type_U32, PJRT_Buffer_Type_U64, PJRT_Buffer_Type_F16,
      PJRT_Buffer_Type_BF16, PJRT_Buffer_Type_F32, PJRT_Buffer_Type_F64, PJRT_Buffer_Type_C64, PJRT_Buffer_Type_C128,
      PJRT_Buffer_Type_U8,   PJRT_Buffer_Type_U16, PJRT_Buffer_Type_U32};
  return kTypes[static_cast<int>(dtype)];
}

absl::StatusOr<std::shared_ptr<Client>> Client::Create(std::shared_ptr<const Api> api, const std::string& options) {
  std::shared_ptr<Client> client(new Client(std::move(api)));
  const std::vector<NamedOption> parsed = ParseOptions(options);
  std::vector<PJRT_NamedValue> values;
  for (const NamedOption& option : parsed) values.push_back(option.value);
  auto args = TPU_PJRT_ARGS(PJRT_Client_Create);
  args.create_options = values.data();
  args.num_options = values.size();
  if (absl::Status s = TPU_PJRT_CALL(client->api(), PJRT_Client_Create, args); !s.ok()) return s;
  client->client_ = args.client;
  if (absl::Status s = client->Describe(); !s.ok()) return s;
  if (client->devices_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("PJRT plugin ", client->api().path(), ": has no device"));
  }
  return client;
}

absl::Status Client::Describe() {
  auto devices = TPU_PJRT_ARGS(PJRT_Client_AddressableDevices);
  devices.client = client_;
  if (absl::Status s = TPU_PJRT_CALL(*api_, PJRT_Client_AddressableDevices, devices); !s.ok()) return s;
  devices_.assign(devices.addressable_devices, devices.addressable_devices + devices.num_addressable_devices);
  auto name = TPU_PJRT_ARGS(PJRT_Client_PlatformName);
  name.client = client_;
  if (absl::Status s = TPU_PJRT_CALL(*api_, PJRT_Client_PlatformName, name); !s.ok()) return s;
  platform_.assign(name.platform_name, name.platform_name_size);
  compile_options_ = CompileOptionsFor(platform_);
  auto version = TPU_PJRT_ARGS(PJRT_Client_PlatformVersion);
  version.client = client_;
  if (absl::Status s = TPU_PJRT_CALL(*api_, PJRT_Client_PlatformVersion, version); !s.ok()) return s;
  platform_version_.assign(version.platform_version, version.platform_version_size);
  return absl::OkStatus();
}

Client::~Client() {
  if (client_ == nullptr) return;
  auto args = TPU_PJRT_ARGS(PJRT_Client_Destroy);
  args.client = client_;
  (void)TPU_PJRT_CALL(*api_, PJRT_Client_Destroy, args);
}

std::string Client::KindOf(PJRT_Device* device) const {
  auto description = TPU_PJRT_ARGS(PJRT_Device_GetDescription);
  description.device = device;
  if (!TPU_PJRT_CALL(*api_, PJRT_Device_GetDescription, description).ok()) return "unknown";
  auto kind = TPU_PJRT_ARGS(PJRT_DeviceDescription_Kind);
  kind.device_description = description.device_description;
  if (!TPU_PJRT_CALL(*api_, PJRT_DeviceDescription_Kind, kind).ok()) return "unknown";
  return std::string(kind.device_kind, kind.device_kind_size);
}

absl::StatusOr<PJRT_LoadedExecutable*> Client::CompileAndLoad(const std::string& text) {
  const PJRT_Program program = ProgramOf(text);
  auto args = TPU_PJRT_ARGS(PJRT_Client_Compile);
  args.client = client_;
  args.program = &program;
  args.compile_options = compile_options_.data();
  args.compile_options_size = compile_options_.size();
  if (absl::Status s = TPU_PJRT_CALL(*api_, PJRT_Client_Compile, args); !s.ok()) return s;
  return args.executable;
}

absl::StatusOr<std::string> Client::Serialized(PJRT_LoadedExecutable* executable) const {
  auto get = TPU_PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable);
  get.loaded_executable = executable;
  absl::Status got = TPU_PJRT_CALL(*api_, PJRT_LoadedExecutable_GetExecutable, get);
  if (absl::IsUnimplemented(got)) return "";
  if (!got.ok()) return got;
  auto args = TPU_PJRT_ARGS(PJRT_Executable_Serialize);
  args.executable = get.executable;
  absl::Status status = TPU_PJRT_CALL(*api_, PJRT_Executable_Serialize, args);
  std::string bytes;
  if (status.ok()) {
    bytes.assign(args.serialized_bytes, args.serialized_bytes_size);
    args.serialized_executable_deleter(args.serialized_executable);
  }
  auto destroy = TPU_PJRT_ARGS(PJRT_Executable_Destroy);
  destroy.executable = get.executable;
  (void)TPU_PJRT_CALL(*api_, PJRT_Executable_Destroy, destroy);
  if (absl::IsUnimplemented(status)) return "";
  if (!status.ok()) return status;
  return bytes;
}

absl::StatusOr<std::string> Client::Compile(const std::string& text) {
  absl::StatusOr<PJRT_LoadedExecutable*> executable = CompileAndLoad(text);
  if (!executable.ok()) return executable.status();
  absl::StatusOr<std::string> bytes = Serialized(*executable);
  Destroy(*executable);
  return bytes;
}

absl::StatusOr<PJRT_LoadedExecutable*> Client::Load(const std::string& serialized) {
  auto args = TPU_PJRT_ARGS(PJRT_Executable_DeserializeAndLoad);
  args.client = client_;
  args.serialized_executable = serialized.data();
  args.serialized_executable_size = serialized.size();
  if (absl::Status s = TPU_PJRT_CALL(*api_, PJRT_Executable_DeserializeAndLoad, args); !s.ok()) return s;
  return args.loaded_executable;
}

void Client::Destroy(PJRT_LoadedExecutable* executable) const {
  auto args = TPU_PJRT_ARGS(PJRT_LoadedExecutable_Destroy);
  args.executable = executable;
  (void)TPU_PJRT_CALL(*api_, PJRT_LoadedExecutable_Destroy, args);
}

absl::StatusOr<PJRT_Buffer*> Client::Upload(const void* source, const TensorType& type, PJRT_Device* device) const {
  std::string zeros;
  if (source == nullptr) {
    zeros.assign(type.bytes(), '\0');
    source = zeros.data();
  }
  auto args = TPU_PJRT_ARGS(PJRT_Client_BufferFromHostBuffer);
  args.client = client_;
  args.data = source;
  args.type = BufferType(type.dtype);
  args.dims = type.dims.data();
  args.num_dims = type.dims.size();
  args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
  args.device = device;
  if (absl::Status s = TPU_PJRT_CALL(*api_, PJRT_Client_BufferFromHostBuffer, args); !s.ok()) return s;
  if (absl::Status s = api_->Await(args.done_with_host_buffer); !s.ok()) {
    Destroy(args.buffer);
    return s;
  }
  return args.buffer;
}

void Client::Destroy(PJRT_Buffer* buffer) const {
  auto args = TPU_PJRT_ARGS(PJRT_Buffer_Destroy);
  args.buffer = buffer;
  (void)TPU_PJRT_CALL(*api_, PJRT_Buffer_Destroy, args);
}

}  // namespace tpu::pjrt

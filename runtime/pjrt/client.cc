#include "runtime/pjrt/client.h"

#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/flags.h"

namespace tpu::pjrt {
namespace {

// Protocol buffers, as far as compile options need them.
std::string Varint(uint64_t n) {
  std::string bytes;
  for (; n >= 0x80; n >>= 7) bytes += static_cast<char>(n | 0x80);
  return bytes + static_cast<char>(n);
}
std::string Number(int field, uint64_t n) { return Varint(static_cast<uint64_t>(field) << 3) + Varint(n); }
std::string Message(int field, const std::string& bytes) {
  return absl::StrCat(Varint(static_cast<uint64_t>(field) << 3 | 2), Varint(bytes.size()), bytes);
}

// env_option_overrides (7): {key (1), value (2): {bool_field (2): false}}, or {int_field (3): ..}. What the user says
// of a flag holds.
std::string Override(absl::string_view flag, int field, uint64_t value) {
  for (absl::string_view asked : absl::StrSplit(Flags::Get().xla_flags, absl::ByAnyChar(" \t\n"))) {
    const bool named = absl::ConsumePrefix(&asked, "--") && absl::ConsumePrefix(&asked, flag);
    if (named && (asked.empty() || asked.front() == '=')) return "";
  }
  return Message(7, Message(1, std::string(flag)) + Message(2, Number(field, value)));
}
std::string SwitchedOff(absl::string_view flag) { return Override(flag, 2, 0); }
std::string SetTo(absl::string_view flag, uint64_t value) { return Override(flag, 3, value); }

// With excess precision XLA leaves out the rounding of a 16-bit result that is converted next. Its CPU compiler keeps
// the right operand of a product packed by its address: of two operands that lie at one place one after the other the
// second is never seen. Its quick minimum and maximum lose NaN. Of optimised loops some write elsewhere, beyond the
// result even: a 33rd row of four f64 that pads 32. Its compiler for GPUs times many forms of each product on the
// device, which the program's launches wait for, seconds a fragment; without, products are cuBLAS's choice, as in
// PyTorch.
std::string FlagsFor(const std::string& platform) {
  if (platform == "cpu") {
    return absl::StrCat(SwitchedOff("xla_allow_excess_precision"), SwitchedOff("xla_cpu_use_xnnpack"),
                        SwitchedOff("xla_cpu_enable_fast_min_max"), SetTo("xla_backend_optimization_level", 1));
  }
  if (platform == "cuda") {
    return absl::StrCat(SwitchedOff("xla_allow_excess_precision"), SwitchedOff("xla_gpu_enable_triton_gemm"),
                        SetTo("xla_gpu_autotune_level", 0));
  }
  return "";
}

}  // namespace

// executable_build_options (3): {num_replicas (4), num_partitions (5), device_assignment (9): {replica_count (1),
// computation_count (2), computation_devices (3): {replica_device_ids (1), one after the other}}}.
std::string CompileOptionsFor(const std::string& platform, int replicas, absl::Span<const int> devices) {
  std::string ids, assignment;
  for (int id : devices) absl::StrAppend(&ids, Varint(static_cast<uint64_t>(id)));
  if (!devices.empty()) {
    assignment = Message(9, Number(1, devices.size()) + Number(2, 1) + Message(3, Message(1, ids)));
  }
  return Message(3, absl::StrCat(Number(4, static_cast<uint64_t>(replicas)), Number(5, 1), assignment)) +
         FlagsFor(platform);
}

PluginOptions::PluginOptions(const std::string& options) {
  for (absl::string_view item : absl::StrSplit(options, ',', absl::SkipWhitespace())) {
    texts_.push_back(absl::StrSplit(item, absl::MaxSplits('=', 1)));
  }
  for (const auto& [name, text] : texts_) {
    auto v = Sized<PJRT_NamedValue>(PJRT_NamedValue_STRUCT_SIZE);
    v.name = name.data();
    v.name_size = name.size();
    v.value_size = 1;
    if (text == "true" || text == "false") {
      v.type = PJRT_NamedValue_kBool;
      v.bool_value = text == "true";
    } else if (absl::SimpleAtoi(text, &v.int64_value)) {
      v.type = PJRT_NamedValue_kInt64;
    } else {
      v.type = PJRT_NamedValue_kString;
      v.string_value = text.data();
      v.value_size = text.size();
    }
    values_.push_back(v);
  }
}

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
      PJRT_Buffer_Type_U8,   PJRT_Buffer_Type_U16, PJRT_Buffer_Type_U32, PJRT_Buffer_Type_U8,  PJRT_Buffer_Type_U8,
      PJRT_Buffer_Type_U8,   PJRT_Buffer_Type_U8,  PJRT_Buffer_Type_U8};
  return kTypes[static_cast<int>(dtype)];
}

absl::StatusOr<std::shared_ptr<Client>> Client::Create(std::shared_ptr<const Api> api, const std::string& options) {
  std::shared_ptr<Client> client(new Client(std::move(api)));
  const PluginOptions parsed(options);
  auto args = TPU_PJRT_ARGS(PJRT_Client_Create);
  args.create_options = parsed.values().data();
  args.num_options = parsed.values().size();
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
  // compile_portable_executable (4): one executable runs on any device of the client.
  compile_options_ = CompileOptionsFor(platform_, 1, {}) + Number(4, 1);
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

absl::StatusOr<PJRT_LoadedExecutable*> Client::CompileAndLoad(const std::string& text) const {
  return CompileAndLoad(text, compile_options_);
}

absl::StatusOr<PJRT_LoadedExecutable*> Client::CompileAndLoadJoint(const std::string& text,
                                                                   absl::Span<PJRT_Device* const> devices) const {
  std::vector<int> ids;
  for (PJRT_Device* device : devices) {
    auto description = TPU_PJRT_ARGS(PJRT_Device_GetDescription);
    description.device = device;
    if (absl::Status s = TPU_PJRT_CALL(*api_, PJRT_Device_GetDescription, description); !s.ok()) return s;
    auto id = TPU_PJRT_ARGS(PJRT_DeviceDescription_Id);
    id.device_description = description.device_description;
    if (absl::Status s = TPU_PJRT_CALL(*api_, PJRT_DeviceDescription_Id, id); !s.ok()) return s;
    ids.push_back(id.id);
  }
  return CompileAndLoad(text, CompileOptionsFor(platform_, static_cast<int>(ids.size()), ids));
}

absl::StatusOr<PJRT_LoadedExecutable*> Client::CompileAndLoad(const std::string& text,
                                                              const std::string& options) const {
  const PJRT_Program program = ProgramOf(text);
  auto args = TPU_PJRT_ARGS(PJRT_Client_Compile);
  args.client = client_;
  args.program = &program;
  args.compile_options = options.data();
  args.compile_options_size = options.size();
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

#include "dispatcher/host_kernels.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "dispatcher/capture.h"
#include "dispatcher/convert.h"
#include "dispatcher/errors.h"
#include "dispatcher/generator.h"
#include "dispatcher/host_allocator.h"
#include "dispatcher/host_convolutions.h"
#include "dispatcher/host_left_out.h"
#include "dispatcher/host_products.h"
#include "dispatcher/host_random.h"
#include "dispatcher/host_team.h"
#include "dispatcher/host_widened.h"
#include "dispatcher/overlap.h"
#include "dispatcher/streams.h"
#include "dispatcher/upload.h"
#include "dispatcher/values.h"
#include "jit/compile_pool.h"
#include "jit/engine.h"
#include "jit/metrics.h"
#include "runtime/flags.h"
#include "runtime/machine.h"
#include "runtime/stream.h"

namespace tpu {
namespace {

c10::IValue ScalarValue(const ScalarSpec& spec, uint64_t bits) {
  c10::Scalar number;
  if (spec.dtype == DType::kFloat64) {
    number = std::bit_cast<double>(bits);
  } else if (spec.dtype == DType::kBool) {
    number = bits != 0;
  } else {
    number = static_cast<int64_t>(bits);
  }
  if (spec.as == ScalarSpec::As::kFloat) return number.toDouble();
  if (spec.as == ScalarSpec::As::kScalar) return number;
  at::Tensor tensor = at::scalar_tensor(number, at::TensorOptions(spec.tensor_type));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(spec.wrapped_number);
  return tensor;
}

at::Generator CpuGenerator(uint64_t seed, uint64_t offset) {
  return at::make_generator<at::CPUGeneratorImpl>(seed ^ (offset + 1) * 0x9E3779B97F4A7C15ull);
}

// What a kernel's result says, row by row: solve(left=False) of complex matrices says the conjugate of what it wrote.
at::Tensor Elements(const at::Tensor& t) { return t.resolve_conj().resolve_neg().contiguous(); }

// The window that a "tpu::view" or "tpu::update" (whose window's dtype is given) means, of its base's flat elements.
at::Tensor Window(const Call& call, const at::Tensor& base) {
  const size_t first = call.operands.size();
  return at::as_strided(base, std::get<std::vector<int64_t>>(call.arguments[first].attribute),
                        std::get<std::vector<int64_t>>(call.arguments[first + 1].attribute),
                        std::get<int64_t>(call.arguments[first + 2].attribute));
}

// All whole elements of the base of a "tpu::view" or "tpu::update", as its window's dtype.
at::Tensor Flat(Device& device, const Call& call, const BufferRef& base) {
  const c10::ScalarType type = ToScalarType(std::get<DType>(call.arguments.back().attribute));
  const Dims elements = {static_cast<int64_t>(call.operands[0].type.bytes() / c10::elementSize(type))};
  return HostTensor(device, base, elements, type);
}

at::Tensor Read(Device& device, const KernelInput& input, const Dims& dims, c10::ScalarType type) {
  const BufferRef& buffer = input.argument.buffer;
  if (input.window == nullptr) return HostTensor(device, buffer, dims, type);
  return Window(*input.window, Flat(device, *input.window, buffer)).view(type);
}

// The window operations of strided storages.
absl::Status RunWindow(Device& device, const Call& call, absl::Span<const KernelInput> inputs,
                       absl::Span<BufferRef> outputs) {
  BufferRef base = inputs[0].argument.buffer;
  const bool update = call.op == "tpu::update";
  if (inputs[0].window != nullptr) {
    const TensorType& type = call.operands[0].type;
    const at::Tensor window = Read(device, inputs[0], type.dims, ToScalarType(type.dtype));
    base = AdoptTensor(device, update ? window.clone(at::MemoryFormat::Contiguous) : window.contiguous(), type);
  }
  at::Tensor flat = Flat(device, call, base);
  if (update) {
    const c10::ScalarType type = flat.scalar_type();
    const int64_t bytes = call.operands[0].type.bytes(), in_elements = flat.nbytes();
    at::Tensor all = in_elements < bytes ? HostTensor(device, base, {bytes}, c10::kByte) : flat;
    if (inputs[0].window == nullptr && !inputs[0].argument.donated) all = all.clone();
    flat = in_elements < bytes ? all.narrow(0, 0, in_elements).view(type) : all;
    Window(call, flat).copy_(Read(device, inputs[1], call.operands[1].type.dims, type));
    outputs[0] = AdoptTensor(device, all, call.results[0]);
  } else {
    outputs[0] = AdoptTensor(device, Window(call, flat).contiguous(), call.results[0]);
  }
  return absl::OkStatus();
}

c10::IValue ArgumentValue(Device& device, const HostKernel& kernel, const CallArgument& a, const c10::IValue& constant,
                          const c10::TypePtr& type, const Call& call, absl::Span<const KernelInput> inputs) {
  const auto scalar = [&](int i) { return ScalarValue(kernel.scalars[i], inputs[i].argument.scalar_bits); };
  const auto tensor = [&](int i) {
    if (call.operands[i].is_scalar) return scalar(i).toTensor();
    const at::Tensor read = Read(device, inputs[i], call.operands[i].type.dims, kernel.operands[i]);
    return kernel.any_strides ? read : read.contiguous();
  };
  switch (a.kind) {
    case CallArgument::Kind::kTensor:
      return tensor(a.first);
    case CallArgument::Kind::kScalar:
      return scalar(a.first);
    case CallArgument::Kind::kScalarList: {
      c10::List<c10::Scalar> list;
      for (int i = 0; i < a.count; ++i) {
        list.push_back(scalar(a.first + i).toScalar());
      }
      return c10::impl::toList(std::move(list));
    }
    case CallArgument::Kind::kTensorList: {
      int next = a.first;
      c10::TypePtr list_type = type;
      if (list_type->kind() == c10::TypeKind::OptionalType) {
        list_type = list_type->expectRef<c10::OptionalType>().getElementType();
      }
      if (list_type->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::TensorType) {
        c10::List<at::Tensor> list;
        for (int i = 0; i < a.count; ++i) list.push_back(a.absent[i] ? at::Tensor() : tensor(next++));
        return list;
      }
      c10::List<std::optional<at::Tensor>> list;
      for (int i = 0; i < a.count; ++i) {
        list.push_back(a.absent[i] ? std::nullopt : std::optional(tensor(next++)));
      }
      return list;
    }
    case CallArgument::Kind::kAttribute:
      break;
  }
  return constant;
}

// Whether the caller gives up every operand of these arguments.
bool AllDonated(const Call& call, const std::vector<int>& arguments, absl::Span<const KernelInput> inputs) {
  for (int a : arguments) {
    const CallArgument& argument = call.arguments[a];
    const auto absent = std::count(argument.absent.begin(), argument.absent.end(), true);
    for (const KernelInput& input : inputs.subspan(argument.first, argument.count - absent)) {
      if (!input.argument.donated) return false;
    }
  }
  return true;
}

// Written arguments are the last results: copies, or the operands themselves where the caller gives them up.
std::vector<at::Tensor> TakeMutated(const HostKernel& kernel, const std::vector<int>& arguments, bool donated,
                                    torch::jit::Stack& stack) {
  std::vector<at::Tensor> mutated;
  for (int m : arguments) {
    if (stack[m].isNone()) {  // out=
      const size_t result = kernel.results.size() - arguments.size() + mutated.size();
      mutated.push_back(at::empty({0}, at::TensorOptions(kernel.results[result])));
      stack[m] = mutated.back();
    } else if (stack[m].isTensor()) {
      mutated.push_back(donated ? stack[m].toTensor() : stack[m].toTensor().clone());
      stack[m] = mutated.back();
    } else {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : TensorsOf(stack[m])) {
        mutated.push_back(donated ? t : t.clone());
        list.push_back(mutated.back());
      }
      stack[m] = list;
    }
  }
  return mutated;
}

// Sums depend on how many threads make them, which an engine that is fixed must not choose by the clock.
void CallByATen(const HostKernel& kernel, const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (Engine::Get().fixed() || at::get_num_threads() < 2) return CallWidening(op, stack);
  const bool alone = kernel.team.Alone();
  std::optional<HostTeamLimit> limit;
  if (alone) limit.emplace(1);
  const auto start = std::chrono::steady_clock::now();
  CallWidening(op, stack);
  kernel.team.Took(alone, (std::chrono::steady_clock::now() - start) / std::chrono::nanoseconds(1));
}

// Whether ATen's library may round what it multiplies: it asks torch.set_float32_matmul_precision when it runs.
bool LibraryRounds() {
  using Precision = at::Float32Precision;
  const Precision precision = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  return precision == Precision::BF16 || precision == Precision::TF32;
}

std::vector<at::Tensor> CallKernel(Device& device, const HostKernel& kernel, const Call& call,
                                   absl::Span<const KernelInput> inputs) {
  if (kernel.seeded && DrawsPhilox(call)) {
    return DrawPhilox(call, inputs,
                      [&](int i) { return Read(device, inputs[i], call.operands[i].type.dims, kernel.operands[i]); });
  }
  TORCH_CHECK(kernel.op.hasSchema(), "tpu: the library of ", kernel.op.operator_name(),
              " ended before this call was computed; read its results before");
  const bool widens = kernel.products && LibraryRounds() && kernel.op.schema().overload_name().empty();
  const bool over = !widens && kernel.in_place && AllDonated(call, kernel.in_place_mutated, inputs);
  const c10::OperatorHandle& op = over ? *kernel.in_place : kernel.op;
  const c10::FunctionSchema& schema = op.schema();
  torch::jit::Stack stack;
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    stack.push_back(
        ArgumentValue(device, kernel, call.arguments[i], kernel.constants[i], argument.real_type(), call, inputs));
    if (kernel.seeded && argument.name() == "generator") {
      const size_t n = inputs.size();
      stack.back() = CpuGenerator(inputs[n - 2].argument.scalar_bits, inputs[n - 1].argument.scalar_bits);
    }
  }
  if (kernel.promoted >= 0 && c10::get_default_dtype_as_scalartype() != kernel.default_type) {
    const bool list = call.arguments[kernel.promoted].kind == CallArgument::Kind::kTensorList;
    stack[kernel.promoted] =
        MapTensors(stack[kernel.promoted], list ? ArgumentKind::kTensorList : ArgumentKind::kTensor,
                   [&](const at::Tensor& t) { return t.to(kernel.computed); });
  }
  const std::vector<int>& written = over ? kernel.in_place_mutated : kernel.mutated;
  const std::vector<at::Tensor> mutated =
      TakeMutated(kernel, written, over || AllDonated(call, written, inputs), stack);
  if (!MultiplyOnDevice(device, op, stack) && !ConvolveOnDevice(device, op, stack) && !CallWithLeftOut(op, stack)) {
    if (widens) ConvertTensors(stack, c10::kFloat, c10::kDouble);  // f64 has no precision but its own
    AlignGroups(op, stack);
    CallByATen(kernel, op, stack);
  }
  std::vector<at::Tensor> results;
  for (size_t r = 0; r < stack.size(); ++r) {
    const auto* alias = schema.returns()[r].alias_info();
    if (alias != nullptr && alias->isWrite()) continue;
    if (stack[r].isTensor()) {
      results.push_back(stack[r].toTensor());
    } else {
      for (const c10::IValue& item : stack[r].toListRef()) results.push_back(item.toTensor());
    }
  }
  results.insert(results.end(), mutated.begin(), mutated.end());
  return results;
}

absl::Status RunKernel(Device& device, const Call& call, absl::Span<const KernelInput> inputs,
                       absl::Span<BufferRef> outputs) {
  const HostKernel& kernel = *static_cast<const HostKernel*>(call.host_kernel.get());
  std::vector<at::Tensor> results = CallKernel(device, kernel, call, inputs);
  if (results.size() != outputs.size()) {
    return absl::InternalError("the host kernel gave another number of results than PyTorch's shape inference");
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const TensorType& type = call.results[i];
    const c10::IntArrayRef dims(type.dims.data(), type.dims.size());
    if (!results[i].defined() || (results[i].numel() == 0 && c10::multiply_integers(dims) != 0)) {
      results[i] = at::zeros(dims, kernel.results[i]);  // left out because nobody reads it: batch norm's in evaluation
    } else if (results[i].sizes() != dims) {
      results[i] = results[i].expand(dims);
    }
    outputs[i] = AdoptTensor(device, Elements(results[i].to(kernel.results[i])), type);
  }
  return absl::OkStatus();
}

// What a thread that has set nothing has set: grad mode, autocast, dispatch and function modes, profilers.
const at::ThreadLocalState& FreshThreadState() {
  static const at::ThreadLocalState state = [] {
    std::optional<at::ThreadLocalState> fresh;
    std::thread([&] { fresh.emplace(); }).join();
    return *std::move(fresh);
  }();
  return state;
}

// What PyTorch's kernels warn of they have warned of at the call (host_check.cc), where Python's filters hold.
class Silence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

}  // namespace

absl::Status RunCall(Device& device, const Call& call, absl::Span<const KernelInput> inputs,
                     absl::Span<BufferRef> outputs) {
  HostAllocatorScope scope(device);
  Silence silence;
  std::optional<c10::WarningUtils::WarningHandlerGuard> silent;
  if (call.op.starts_with("aten::") || call.op.starts_with("tpu::")) silent.emplace(&silence);
  std::optional<at::ThreadLocalStateGuard> as_on_the_streams_thread;
  if (Stream::RunningClaimed()) {
    as_on_the_streams_thread.emplace(FreshThreadState());
  } else {
    GiveUpHostTeamLater();
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  // A team of which two threads get one core, because a compiler has another, waits for itself at every barrier.
  // A reader's thread gets no team of its own.
  std::optional<HostTeamLimit> limit;
  Engine& engine = Engine::Get();
  if (!engine.fixed()) {
    const int compilers = engine.pool().at_work();
    if (as_on_the_streams_thread) {
      limit.emplace(1);
    } else if (compilers > 0) {
      limit.emplace(UsableCores() - compilers);
    }
  }
  try {
    if (call.op == "tpu::view" || call.op == "tpu::update") return RunWindow(device, call, inputs, outputs);
    if (call.op == "tpu::copy") {
      const TensorType& type = call.results[0];
      const TensorType& from = call.operands[0].type;
      const at::Tensor source = Read(device, inputs[0], from.dims, ToScalarType(from.dtype));
      outputs[0] = AdoptTensor(
          device, source.expand({type.dims.data(), type.dims.size()}).to(ToScalarType(type.dtype)).contiguous(), type);
      return absl::OkStatus();
    }
    return RunKernel(device, call, inputs, outputs);
  } catch (...) {
    return StatusOfCurrentException();
  }
}

namespace {

// The CPU's tensors for those of one call.
class HostTensors {
 public:
  // `share`: they lie in copies of the storages, as the call's lie in these.
  HostTensors(const Operator& op, bool share) : op_(op), share_(share) {}

  at::Tensor Of(const at::Tensor& t, bool mutated) {
    if (t.device().type() != c10::DeviceType::PrivateUse1) return t;
    at::Tensor host = IsPlain(t) ? OfPlain(t, mutated) : OfParts(t);
    // Some kernels make what only their derivatives read if one is asked for.
    return t.requires_grad() ? host.set_requires_grad(true) : host;
  }

 private:
  // A copy. Kernels look whether they are given one tensor twice.
  at::Tensor OfParts(const at::Tensor& t) {
    at::Tensor& host = made_[t.unsafeGetTensorImpl()];
    return host.defined() ? host : host = t.cpu();
  }

  at::Tensor OfPlain(const at::Tensor& t, bool mutated) {
    at::Tensor host = share_ ? Shared(t) : Read(ReadValue(*t.unsafeGetTensorImpl()), t);
    if (t.is_conj()) host = host.conj();
    if (t.is_neg()) host = at::_neg_view(host);
    return mutated && !share_ ? host.clone() : host;
  }

  // The value that t, or the storage it lies in, has.
  at::Tensor Read(ValueRef value, const at::Tensor& t) {
    keep_.push_back(std::move(value));
    const BufferRef& buffer =
        AwaitBuffer(keep_.back(), op_.name, op_.data_dependent ? CutReason::kDataDependent : CutReason::kRead);
    const TensorType& type = keep_.back()->type();
    const c10::ScalarType elements = share_ ? ToScalarType(type.dtype) : t.scalar_type();
    return HostTensor(Engine::Get().device(t.device().index()), buffer, type.dims, elements);
  }

  at::Tensor Shared(const at::Tensor& t) {
    TpuStorage& storage = TpuStorage::Of(*t.unsafeGetTensorImpl());
    at::Tensor& copy = copies_[&storage];
    if (!copy.defined()) copy = Read(RowMajorValue(storage), t).clone();
    at::Tensor& host = made_[t.unsafeGetTensorImpl()];  // one tensor given twice is one here
    if (!host.defined()) host = at::empty({0}, at::TensorOptions(t.scalar_type()));
    return host.set_(copy.storage(), t.storage_offset(), t.sizes(), t.strides());
  }

  const Operator& op_;
  const bool share_;
  std::vector<ValueRef> keep_;
  std::unordered_map<const TpuStorage*, at::Tensor> copies_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> made_;
};

// A result of a host kernel, on the device: where it lies, when that is the device's memory.
c10::IValue ToDevice(const c10::IValue& v, c10::DeviceIndex device) {
  const auto one = [&](const at::Tensor& t) {
    if (!t.defined()) return t;
    if (!IsPlain(t)) return t.to(c10::Device(c10::kPrivateUse1, device));
    const Layout* layout = LayoutLike(t);
    BufferRef buffer = AdoptTensor(Engine::Get().device(device), Elements(t), layout->type);
    return MakeTensor(MakeRef<Value>(&layout->type, nullptr, std::move(buffer)), layout, device);
  };
  if (v.isTensor()) return one(v.toTensor());
  if (v.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& item : v.toListRef()) list.push_back(one(item.toTensor()));
    return list;
  }
  return v;
}

void WriteBack(at::Tensor target, at::Tensor host) {
  if (!IsPlain(target)) {
    if (at::sparse_csr::is_sparse_compressed(target)) target.resize_as_sparse_(host);
    target.copy_(host);
    return;
  }
  if (target.sizes() != host.sizes()) {  // it lies as the kernel left it
    const size_t elements = at::detail::computeStorageNbytes(host.sizes(), host.strides(), 1);
    target.resize_({static_cast<int64_t>(elements)});
    target.as_strided_(host.sizes(), host.strides(), target.storage_offset());
  }
  for (int64_t d = 0; d < target.dim(); ++d) {  // elements in one place, which the kernel gave it, are written once
    if (target.stride(d) != 0 || target.size(d) < 2) continue;
    target = target.narrow(d, 0, 1);
    host = host.narrow(d, 0, 1);
  }
  const c10::TensorImpl& impl = *target.unsafeGetTensorImpl();
  const Layout* layout = InternLayout(target.scalar_type(), target.sizes());
  WriteValue(impl, UploadValue(host, layout, target.device().index()));
}

}  // namespace

void CheckOneDevice(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> device;
  for (const c10::IValue& v : arguments) {
    for (const at::Tensor& t : TensorsOf(v)) {
      if (t.is_cpu() && t.dim() == 0) continue;
      if (!device) device = t.device();
      TORCH_CHECK(t.device() == *device,
                  "Expected all tensors to be on the same device, but found at least two devices, ", *device, " and ",
                  t.device(), "! (when checking arguments of ", op.operator_name(), ")");
    }
  }
}

void RunNow(const Operator& op, torch::jit::Stack& stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(Flags::Get().fallback != "error", "tpu: ", op.name,
                              " runs only as a host kernel, and TORCH_TPU_FALLBACK=error forbids that");
  TORCH_CHECK_NOT_IMPLEMENTED(Capture::Current() == nullptr, "tpu: ", op.name, " runs at once: it can't be captured");
  Metrics::Get().CountHostKernel(op.name, Engine::Get().Where());
  const size_t n = op.kinds.size();
  const std::vector<c10::IValue> arguments(stack.end() - n, stack.end());
  torch::jit::drop(stack, n);
  c10::DeviceIndex device = -1;
  for (const c10::IValue& v : arguments) {
    if (v.isDevice()) device = v.toDevice().has_index() ? v.toDevice().index() : CurrentDevice();
    for (const at::Tensor& t : TensorsOf(v)) {
      if (t.device().type() == c10::DeviceType::PrivateUse1) device = t.device().index();
    }
  }
  if (device < 0) device = CurrentDevice();
  CurrentStream(device);  // makes the devices
  at::AutoDispatchBelowADInplaceOrView guard;
  HostTensors tensors(op, WritesOverItself(op, arguments) || !FindOverlaps(op, arguments).empty());
  torch::jit::Stack host;
  for (size_t i = 0; i < n; ++i) {
    const bool mutated = op.Writes(static_cast<int>(i));
    host.push_back(MapTensors(arguments[i], op.kinds[i], [&](const at::Tensor& t) { return tensors.Of(t, mutated); }));
    if (host.back().isDevice()) host.back() = c10::Device(c10::kCPU);
    if (op.kinds[i] == ArgumentKind::kGenerator && op.seeded) {
      const auto generator = arguments[i].isNone() ? std::nullopt : std::optional(arguments[i].toGenerator());
      const auto [seed, offset] = ReservePhilox(generator, 4, device);
      host.back() = CpuGenerator(seed, offset);
    }
  }
  const torch::jit::Stack host_arguments = host;
  const HostAllocatorScope scope(Engine::Get().device(device));
  torch::jit::Stack results = std::move(host);  // ends before the scope: an opaque tensor (to_mkldnn) frees a raw block
  CallWidening(op.op, results);
  for (int m : op.mutated) {
    const std::vector<at::Tensor> targets = TensorsOf(arguments[m]), sources = TensorsOf(host_arguments[m]);
    for (size_t i = 0; i < targets.size(); ++i) {
      WriteBack(targets[i], sources[i]);
      CountWrite(op, targets[i]);
    }
  }
  for (size_t r = 0; r < results.size(); ++r) {
    const int alias = r < op.return_alias.size() ? op.return_alias[r] : -1;
    stack.push_back(alias >= 0 ? arguments[alias] : ToDevice(results[r], device));
  }
}

void RunNowBoxed(const c10::OperatorHandle& op, torch::jit::Stack* stack) { RunNow(Operator::Of(op), *stack); }

}  // namespace tpu

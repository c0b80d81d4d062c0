#include "dispatcher/record.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dispatcher/calls.h"
#include "dispatcher/capture.h"
#include "dispatcher/errors.h"
#include "dispatcher/host_check.h"
#include "dispatcher/host_kernels.h"
#include "dispatcher/overlap.h"
#include "dispatcher/structured.h"
#include "dispatcher/typed_record.h"
#include "dispatcher/values.h"
#include "jit/engine.h"
#include "runtime/flags.h"

namespace tpu {
namespace {

void AddSeed(const Operator& op, at::ArrayRef<c10::IValue> arguments, uint64_t counters, Collected& collected) {
  std::optional<at::Generator> generator;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (op.kinds[i] == ArgumentKind::kGenerator && !arguments[i].isNone()) generator = arguments[i].toGenerator();
  }
  collected.operands.resize(collected.operands.size() + 2);
  Operand* const numbers = &collected.operands.back() - 1;
  DrawSeed(generator, counters, collected.device, {numbers, 2});
}

// An out= tensor takes the result's sizes and strides.
void ResizeOut(const at::Tensor& out, const Layout& result) {
  const c10::IntArrayRef sizes = result.sizes();
  if (out.sizes() == sizes) return;
  at::native::resize_output(out, sizes);
  if (result.dense) out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, result.stride_ref());
}

// Gives the written arguments their new values, from results [next, ...).
void WriteMutated(const Operator& op, at::ArrayRef<c10::IValue> arguments, const Signature& s,
                  absl::Span<ValueRef> results, size_t next) {
  for (int m : op.mutated) {
    for (const at::Tensor& t : TensorsOf(arguments[m])) {
      const Layout& result = *s.results[next];
      ValueRef value = std::move(results[next++]);
      if (op.IsOut(m)) ResizeOut(t, result);
      // Its storage holds the conjugate, or another type than the operator computes in.
      if (C10_UNLIKELY(t.is_conj() || t.is_neg() || t.scalar_type() != result.scalar_type)) {
        at::AutoDispatchBelowADInplaceOrView guard;
        t.copy_(MakeTensor(std::move(value), InternLayout(result.scalar_type, result.sizes()), t.device().index()));
      } else {
        WriteValue(*t.unsafeGetTensorImpl(), std::move(value));
      }
      CountWrite(op, t);
    }
  }
}

// The call's returns: written arguments as they came, new tensors over the results.
torch::jit::Stack Returns(const Operator& op, at::ArrayRef<c10::IValue> arguments, const Signature& s,
                          absl::Span<ValueRef> results, c10::DeviceIndex device, size_t* next) {
  torch::jit::Stack returns;
  auto length = s.lists.begin();
  const auto tensor = [&] {
    const Layout* layout = s.results[*next];
    ValueRef value = std::move(results[(*next)++]);
    if (layout == nullptr) return at::Tensor();
    if (layout->dense) return MakeTensor(std::move(value), layout, device);
    at::Tensor made = MakeUninitialized(layout, device);  // has gaps: select_scatter's, where it goes into a view
    WriteValue(*made.unsafeGetTensorImpl(), std::move(value));
    return made;
  };
  const auto& schema_returns = op.op.schema().returns();
  for (size_t r = 0; r < op.return_alias.size(); ++r) {
    if (op.return_alias[r] >= 0) {
      returns.push_back(arguments[op.return_alias[r]]);
    } else if (schema_returns[r].real_type()->kind() == c10::TypeKind::TensorType) {
      returns.push_back(tensor());
    } else {
      c10::List<at::Tensor> list;
      for (size_t left = *length++; left > 0; --left) list.push_back(tensor());
      returns.push_back(list);
    }
  }
  return returns;
}

// The results of a call whose sizes depend on data: how much there is of each is read, and each is cut to that.
torch::jit::Stack CutResults(const Operator& op, const Signature& s, absl::Span<ValueRef> results,
                             c10::DeviceIndex device) {
  const ValueRef told = std::move(results.back());
  std::vector<int64_t> sizes(results.size() - 1);
  const BufferRef& buffer = AwaitBuffer(told, op.name, CutReason::kDataDependent);
  ThrowIfError(Engine::Get().device(device).CopyToHost(buffer, sizes.data(), sizes.size() * sizeof(int64_t)));
  at::AutoDispatchBelowADInplaceOrView guard;
  torch::jit::Stack returns;
  for (size_t r = 0; r < sizes.size(); ++r) {
    const at::Tensor whole = MakeTensor(std::move(results[r]), s.results[r], device);
    const bool all = sizes[r] < 0 || sizes[r] == s.results[r]->sizes()[0];
    returns.push_back(all ? whole : whole.narrow(0, 0, sizes[r]).clone());  // recorded: part of what reads it
  }
  return returns;
}

// The call with positions in place of the masks among its indices.
void RecordWithPositions(Operator& op, torch::jit::Stack* stack) {
  const auto at = stack->end() - static_cast<int64_t>(op.kinds.size());
  const at::Tensor self = at->toTensor();
  const auto indices = at[op.indices].to<c10::List<std::optional<at::Tensor>>>();
  c10::List<std::optional<at::Tensor>> positions;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    for (const at::Tensor& t : at::native::expandTensors(self, indices)) {
      positions.push_back(t.defined() ? std::optional(t) : std::nullopt);
    }
  }
  *(stack->end() - static_cast<int64_t>(op.kinds.size()) + op.indices) = positions;
  Record(op, stack);
}

// Whether the tensors are on several devices, but for numbers on the CPU beside the first list.
bool OnSeveralDevices(const Operator& op, at::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> device;
  bool several = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (static_cast<int>(i) == op.packed) continue;
    VisitTensors(arguments[i], op.kinds[i], [&](const at::Tensor& t) {
      if (i > 0 && t.is_cpu() && t.dim() == 0) return;
      if (!device) device = t.device();
      several |= t.device() != *device;
    });
  }
  return several;
}

}  // namespace

void Record(Operator& op, torch::jit::Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(!op.is_view, "tpu: ", op.name, " returns a view and has no kernel for strided storage");
  const size_t n = op.kinds.size();
  const at::ArrayRef<c10::IValue> arguments(stack->data() + stack->size() - n, n);
  if (!op.returns_tensors) {
    if (op.name.starts_with("aten::")) CheckOneDevice(op.op, arguments);
    return RunNow(op, *stack);
  }
  if (op.for_each && OnSeveralDevices(op, arguments)) {  // one by one, as PyTorch takes lists on the CPU
    return op.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  while (true) {
    Collected collected;
    collected.Collect(op, arguments);
    if (Record(op, collected, stack)) return;
  }
}

bool Record(Operator& op, Collected& collected, torch::jit::Stack* stack) {
  const size_t n = op.kinds.size();
  const at::ArrayRef<c10::IValue> arguments(stack->data() + stack->size() - n, n);
  for (const Overlap& overlap : FindOverlaps(op, arguments)) collected.words.push_back(overlap.word());
  SignatureRef s = op.Find(collected.words);
  if (s == nullptr) {
    SignatureRef inferred = Infer(op, arguments, collected);
    TORCH_CHECK_NOT_IMPLEMENTED(!inferred->recordable || inferred->expands_masks || Flags::Get().fallback != "error" ||
                                    Engine::Get().backend().CanLower(*inferred->call),
                                "tpu: ", op.name,
                                " has no lowering, and TORCH_TPU_FALLBACK=error forbids host kernels");
    const auto& layouts = collected.layouts;
    const bool numbers = std::find(layouts.begin(), layouts.end(), nullptr) != layouts.end();
    if (inferred->refused && numbers) {  // others may be right
      RunNow(op, *stack);
      return true;
    }
    s = op.Insert(collected.words, std::move(inferred));
  }
  if (s->expands_masks || !s->recordable) {
    s->expands_masks ? RecordWithPositions(op, stack) : RunNow(op, *stack);
    return true;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(!s->bounded || Capture::Current() == nullptr, "tpu: ", op.name,
                              " is read at once: it can't be captured");
  if (op.seeded) {
    CheckNumbers(op, *s->call, collected, arguments);
    AddSeed(op, arguments, s->random_counters, collected);
  }
  absl::InlinedVector<ValueRef, 4> results(s->call->results.size());
  RecordCall(collected.device, s->call, collected.operands, absl::MakeSpan(results));
  const bool checks = op.check_errors >= 0 && arguments[op.check_errors].toBool();
  if (C10_UNLIKELY(checks || Engine::Get().mode() == Mode::kDebug) && Capture::Current() == nullptr) {
    for (const ValueRef& result : results) AwaitBuffer(result, op.name);
  }
  size_t next = 0;
  torch::jit::Stack returns = s->bounded ? CutResults(op, *s, absl::MakeSpan(results), collected.device)
                                         : Returns(op, arguments, *s, absl::MakeSpan(results), collected.device, &next);
  if (s->plain && op.Writes(0) && arguments[0].isTensor() && !collected.first_is_made) {
    if (!collected.WriteFirst(arguments[0].toTensor(), std::move(results[next]))) return false;
  } else {
    WriteMutated(op, arguments, *s, absl::MakeSpan(results), next);
  }
  stack->resize(stack->size() - n);
  for (c10::IValue& v : returns) stack->push_back(std::move(v));
  return true;
}

namespace {

// One operator's kernel, which finds what its schema says at the first call.
class Recorder final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (C10_UNLIKELY(operator_ == nullptr)) operator_ = &Operator::Of(op);
    Record(*operator_, stack);
  }

 private:
  Operator* operator_ = nullptr;
};

void RecordFallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Record(Operator::Of(op), stack); }

// CUDA counts integers too, and that is what is asked of devices other than the CPU. Doubles fall where they do.
void RecordHistogram(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::IValue& self = torch::jit::peek(*stack, 0, op.schema().arguments().size());
  const at::ScalarType type = self.toTensor().scalar_type();
  const bool whole = at::isIntegralType(type, /*includeBool=*/false);
  if (whole) self = self.toTensor().to(at::kDouble);
  RecordFallback(op, stack);
  if (whole) stack->back() = stack->back().toTensor().to(type);
}

// With a number that another device holds, which is read: as by every device.
void RecordFill(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static Operator& recorded = Operator::Of(op);
  at::Tensor self = torch::jit::peek(*stack, 0, 2).toTensor();
  const at::Tensor& value = torch::jit::peek(*stack, 1, 2).toTensor();
  if (self.device() == value.device() || value.is_cpu()) return Record(recorded, stack);
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  self.fill_(value.item());
  torch::jit::drop(*stack, 2);
  stack->emplace_back(std::move(self));
}

// index_put: into a tensor of the CPU goes a number that is held here, too, as from every device.
class PutRecorder final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const at::Tensor& self = torch::jit::peek(*stack, 0, 4).toTensor();
    const at::Tensor& value = torch::jit::peek(*stack, 2, 4).toTensor();
    if (!self.is_cpu() || value.is_cpu() || value.dim() != 0) return record_(op, keys, stack);
    torch::jit::peek(*stack, 2, 4) = value.cpu();
    op.callBoxed(stack);
  }

 private:
  Recorder record_;
};

// PyTorch's own kernel stays: composites for autograd (but for lowered ones that the CPU has a kernel for, which have a
// derivative of their own); views; and what moves between devices (factories, conversions, copies), which kernels.cc
// serves.
bool StaysPyTorchs(const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      !op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) {
    return true;
  }
  const std::string& name = op.schema().name();
  if (name == "aten::copy" || name == "aten::copy_" || name == "aten::clone") return true;
  for (const c10::Argument& a : op.schema().arguments()) {
    if (a.name() == "device") return true;
  }
  for (const c10::Argument& r : op.schema().returns()) {
    if (r.alias_info() != nullptr && !r.alias_info()->isWrite()) return true;
  }
  return false;
}

// An out= form that the CPU has a kernel for, and PyTorch another, for devices that it doesn't know: that of all.dims
// takes types that the CPU's refuses.
bool HasComposedOutForm(const c10::OperatorHandle& op) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && !arguments.empty() && arguments.back().is_out();
}

}  // namespace

void RegisterOperators(const std::vector<std::string>& lowered) {
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  const auto add = [](const c10::OperatorName& name) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || StaysPyTorchs(*op) || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) return;
    if (auto typed = TypedKernel(*op)) {
      static auto* const handles = new std::vector<c10::RegistrationHandleRAII>();
      handles->push_back(c10::Dispatcher::singleton().registerImpl(
          name, c10::DispatchKey::PrivateUse1, *std::move(typed), std::nullopt, nullptr, "torch_tpu"));
      return;
    }
    library->impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Recorder>()));
  };
  for (const std::string& full : lowered) {
    if (full.rfind("aten::", 0) != 0) continue;
    const size_t dot = full.find('.');
    const std::string name = full.substr(0, dot);
    const std::string overload = dot == std::string::npos ? "" : full.substr(dot + 1);
    add({name, overload});
    add({name + "_", overload});
  }
  // PyTorch's kernels of structured operators call the out= form, of which only the Meta key (Python, mostly) tells
  // what it returns. Copies of views are made of what is recorded anyway.
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || name.name.rfind("aten::", 0) != 0) continue;
    const bool structured = HasStructuredKernel(*op) && !op->hasTag(at::Tag::view_copy);
    if (structured || HasComposedOutForm(*op)) add(name);
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&RecordFallback>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  // PyTorch's own kernel knows its devices by name.
  m.impl("mode.values", torch::CppFunction::makeFromBoxedFunction<&RecordFallback>());
  m.impl("histc", torch::CppFunction::makeFromBoxedFunction<&RecordHistogram>());
  m.impl("fill_.Tensor", torch::CppFunction::makeFromBoxedFunction<&RecordFill>());
  m.impl("index_put", torch::CppFunction::makeFromBoxedFunctor(std::make_unique<PutRecorder>()));
  m.impl("index_put_", torch::CppFunction::makeFromBoxedFunctor(std::make_unique<PutRecorder>()));
}

}  // namespace tpu

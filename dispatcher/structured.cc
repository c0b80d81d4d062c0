// PyTorch gives every structured operator a kernel for devices that have only its out= form: it computes what the
// results are, makes them, and calls that form. PrivateUse3 is such a device, whose out= forms do nothing. It has
// kernels of some others, too (*shapes.cc, norms.cc, recurrent.cc); and what is made of such operators
// in C++ is run as it is.
#include "dispatcher/structured.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "dispatcher/storage.h"
#include "dispatcher/streams.h"

namespace tpu {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse3);
thread_local bool inferring = false;

// What is written stays as large as it is, and there is nothing else to infer: optimizers' steps, cummax's kernel.
bool WritesAlone(const c10::FunctionSchema& schema) {
  if (!schema.returns().empty() || schema.name().rfind("aten::", 0) != 0) return false;
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& a) {
    return a.alias_info() != nullptr && a.alias_info()->isWrite() && !a.is_out();
  });
}

void DoNothing(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const Operator& op = Operator::Of(handle);
  TORCH_CHECK_NOT_IMPLEMENTED(!op.out.empty() || WritesAlone(handle.schema()), "tpu: ", op.name, " asks for elements");
  const auto arguments = torch::jit::pop(*stack, op.kinds.size());
  for (const int out : op.out) {  // one that is still to be given its sizes: by a kernel that does not only do that
    const bool sized = arguments[out].isTensor() && arguments[out].toTensor().sizes() != c10::IntArrayRef{0};
    TORCH_CHECK_NOT_IMPLEMENTED(sized, "tpu: ", op.name, " gives its results their sizes itself");
  }
  for (const int argument : op.return_alias) stack->push_back(arguments[argument]);
}

at::Tensor CopyNothing(const at::Tensor&, const at::Tensor& destination, bool) { return destination; }

const at::Tensor& Resize(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  CheckPlain(!format || *format == at::MemoryFormat::Contiguous);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

TORCH_LIBRARY_IMPL(_, PrivateUse3, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&DoNothing>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse3, m) {
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_copy_from", &CopyNothing);
  m.impl("resize_", &Resize);
}

}  // namespace

bool HasStructuredKernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

bool IsForEach(std::string_view name) { return name.starts_with("aten::_foreach_"); }

bool IsStructured(const c10::OperatorHandle& op) {
  using Key = c10::DispatchKey;
  const auto has = [&op](Key key) { return op.hasKernelForDispatchKey(key); };
  if (has(Key::PrivateUse3) || HasStructuredKernel(op) || WritesAlone(op.schema())) return true;
  const bool lists = IsForEach(op.schema().name());  // taken apart, for devices without a kernel
  return has(Key::CompositeExplicitAutograd) && !has(Key::CPU) && (lists || has(Key::Meta));
}

bool InferringStructured() { return inferring; }

at::Tensor StructuredStandIn(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType type,
                             c10::DeviceIndex device) {
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(type));
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(TpuStorage::Make(bytes, device)), kKeys,
                                                       c10::scalarTypeToTypeMeta(type));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return made;
}

bool InferStructured(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const absl::Cleanup restore = [former = std::exchange(inferring, true)] { inferring = former; };
  const std::vector<ArgumentKind>& kinds = Operator::Of(op).kinds;
  const bool tensors = std::any_of(kinds.begin(), kinds.end(), [](ArgumentKind kind) {
    return kind == ArgumentKind::kTensor || kind == ArgumentKind::kTensorList;
  });
  try {
    if (tensors) {
      op.callBoxed(stack);
    } else {  // its arguments don't tell where it belongs
      op.redispatchBoxed(kKeys, &stack);
    }
  } catch (const c10::NotImplementedError&) {
    return false;
  }
  return true;
}

namespace {

at::Tensor StandIn(const at::Tensor& t) {
  const c10::DeviceIndex index = t.device().has_index() ? t.device().index() : CurrentDevice();
  return StructuredStandIn(t.sizes(), t.strides(), t.scalar_type(), index);
}

// Of an out= operator, what its functional form says (arguments: stand-ins), where the out= arguments have the types
// of that, and its sizes or still none: else the operator's own inference tells what becomes of them.
std::optional<Inference> AskFunctionalForm(const Operator& op, torch::jit::Stack arguments) {
  const Operator& functional = Operator::Of(op.recorded);
  if (!functional.structured) return std::nullopt;
  torch::jit::Stack made;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!op.IsOut(static_cast<int>(i))) made.push_back(arguments[i]);
  }
  if (!InferStructured(functional.op, made) || made.size() != op.out.size()) return std::nullopt;
  for (size_t r = 0; r < made.size(); ++r) {
    c10::IValue& out = arguments[op.out[r]];
    if (!out.isTensor() || !made[r].isTensor()) return std::nullopt;
    const at::Tensor &given = out.toTensor(), &result = made[r].toTensor();
    if (!given.defined() || !result.defined() || given.scalar_type() != result.scalar_type()) return std::nullopt;
    if (given.sizes() != result.sizes() && given.sizes() != c10::IntArrayRef{0}) return std::nullopt;
    out = result;
  }
  torch::jit::Stack returns;
  for (const int argument : op.return_alias) {
    if (argument < 0) return std::nullopt;
    returns.push_back(arguments[argument]);
  }
  return Inference{std::move(arguments), std::move(returns)};
}

}  // namespace

std::optional<Inference> AskPyTorch(const Operator& op, at::ArrayRef<c10::IValue> arguments, c10::DeviceType device) {
  const auto replace = [&](at::Tensor (*stand_in)(const at::Tensor&)) {
    torch::jit::Stack stack;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::IValue& value = arguments[i];
      if (op.kinds[i] == ArgumentKind::kGenerator) {
        stack.emplace_back();
      } else if (value.isDevice()) {
        stack.emplace_back(c10::Device(c10::kMeta));
      } else {
        stack.push_back(MapTensors(value, op.kinds[i],
                                   [&](const at::Tensor& t) { return t.device().type() != device ? t : stand_in(t); }));
      }
    }
    return stack;
  };
  Inference inference;
  if (op.structured) {
    inference.arguments = inference.returns = replace(&StandIn);
    if (InferStructured(op.op, inference.returns)) return inference;
  }
  if (op.functional_form && !op.out.empty()) {
    if (auto functional = AskFunctionalForm(op, replace(&StandIn))) return functional;
  }
  inference.arguments = replace(
      [](const at::Tensor& t) { return at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kMeta)); });
  for (const int out : op.out) {  // as if it had no elements: it gets its sizes without a warning
    for (const at::Tensor& t : TensorsOf(inference.arguments[out])) t.unsafeGetTensorImpl()->set_sizes_contiguous({0});
  }
  inference.returns = inference.arguments;
  try {
    at::AutoDispatchBelowADInplaceOrView guard;
    op.op.callBoxed(inference.returns);
  } catch (const c10::NotImplementedError&) {
    return std::nullopt;
  }
  return inference;
}

}  // namespace tpu

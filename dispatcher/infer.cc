// Shapes, strides, dtypes and errors from PyTorch itself: the call is made once on stand-ins of the same kinds.
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "dispatcher/calls.h"
#include "dispatcher/convert.h"
#include "dispatcher/host_check.h"
#include "dispatcher/overlap.h"
#include "dispatcher/structured.h"
#include "jit/engine.h"
#include "jit/metrics.h"
#include "runtime/flags.h"

namespace tpu {
namespace {

// at::result_type of the tensors and Scalars among the arguments, but for Scalars given by name alone (alpha, beta,
// value): those become of the result's type.
c10::ScalarType ResultType(const Operator& op, at::ArrayRef<c10::IValue> arguments) {
  at::native::ResultTypeState state = {};
  bool any = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (op.IsOut(static_cast<int>(i))) continue;
    for (const at::Tensor& t : TensorsOf(arguments[i])) {
      state = at::native::update_result_type_state(t, state);
      any = true;
    }
    const bool promotes = !op.is_float[i] && !op.op.schema().arguments()[i].kwarg_only();
    if (op.kinds[i] == ArgumentKind::kScalar && !arguments[i].isNone() && promotes) {
      at::Tensor number = c10::scalar_to_tensor(arguments[i].toScalar());
      number.unsafeGetTensorImpl()->set_wrapped_number(true);
      state = at::native::update_result_type_state(number, state);
      any = true;
    }
  }
  return any ? at::native::result_type(state) : c10::ScalarType::Float;
}

// Types that promote with no other stand beside positions and conditions: theirs is the elements'.
c10::ScalarType ElementsType(at::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& v : arguments) {
    for (const at::Tensor& t : TensorsOf(v)) {
      const c10::ScalarType type = t.scalar_type();
      if (!c10::isIntegralType(type, /*includeBool=*/true) || c10::isBarebonesUnsignedType(type)) return type;
    }
  }
  return c10::ScalarType::Float;
}

DType Promoted(const Operator& op, at::ArrayRef<c10::IValue> arguments) {
  c10::ScalarType type;
  try {
    type = ResultType(op, arguments);
  } catch (const c10::Error&) {
    type = ElementsType(arguments);
  }
  return HasDType(type) ? ToDType(type) : DType::kFloat32;
}

Attribute ToAttribute(const c10::IValue& v) {
  if (v.isNone()) return std::monostate();
  if (v.isBool()) return v.toBool();
  if (v.isInt()) return v.toInt();
  if (v.isSymInt()) return v.toSymInt().expect_int();
  if (v.isDouble()) return v.toDouble();
  if (v.isString()) return v.toStringRef();
  if (v.isDevice()) return v.toDevice().str();
  if (v.isComplexDouble()) return std::vector<double>{v.toComplexDouble().real(), v.toComplexDouble().imag()};
  if (!v.isList()) return v.tagKind();
  const auto list = v.toListRef();
  if (!list.empty() && list[0].isBool()) {
    std::vector<bool> flags;
    for (const c10::IValue& item : list) flags.push_back(item.toBool());
    return flags;
  }
  if (!list.empty() && (list[0].isDouble() || list[0].isComplexDouble())) {
    std::vector<double> numbers;
    for (const c10::IValue& item : list)
      numbers.push_back(item.isDouble() ? item.toDouble() : item.toComplexDouble().real());
    return numbers;
  }
  std::vector<int64_t> ints;
  for (const c10::IValue& item : list) ints.push_back(item.isSymInt() ? item.toSymInt().expect_int() : item.toInt());
  return ints;
}

// A ScalarType argument is an int in the stack; lowerings see our dtype.
Attribute ToAttribute(const c10::IValue& v, const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (type->kind() == c10::TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
  if (v.isInt() && type->kind() == c10::TypeKind::ScalarTypeType) {
    const auto scalar_type = static_cast<c10::ScalarType>(v.toInt());
    if (HasDType(scalar_type)) return ToDType(scalar_type);
  }
  return ToAttribute(v);
}

// A signature that is being made.
struct Draft {
  std::shared_ptr<Signature> signature = std::make_shared<Signature>();
  std::shared_ptr<Call> call = std::make_shared<Call>();
  std::shared_ptr<HostKernel> kernel;

  SignatureRef Finish() {
    signature->call = std::move(call);
    return std::move(signature);
  }
};

// The Call's arguments and the host kernel's constants, from what was collected.
void DescribeArguments(const Operator& op, at::ArrayRef<c10::IValue> arguments, const Collected& collected, Draft& d) {
  int next = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (op.IsOut(static_cast<int>(i))) {
      if (op.functional_form) continue;
      d.call->arguments.emplace_back();  // absent: the host kernel makes its own
      d.kernel->constants.emplace_back();
      continue;
    }
    const c10::IValue& v = arguments[i];
    CallArgument a;
    c10::IValue constant;
    const bool number = op.kinds[i] == ArgumentKind::kScalar && !op.static_scalars && !v.isNone() &&
                        !IsWide(v.toScalar()) && !op.IsDefault(i, v.toScalar());
    if (op.kinds[i] == ArgumentKind::kTensor && !v.isNone() && v.toTensor().defined()) {
      const bool scalar = collected.layouts[next] == nullptr;
      a.kind = scalar ? CallArgument::Kind::kScalar : CallArgument::Kind::kTensor;
      a.first = next++;
      a.count = 1;
    } else if (number) {
      a.kind = CallArgument::Kind::kScalar;
      a.first = next++;
      a.count = 1;
    } else if ((op.kinds[i] == ArgumentKind::kTensorList || op.kinds[i] == ArgumentKind::kScalarList) && !v.isNone()) {
      a.kind =
          op.kinds[i] == ArgumentKind::kTensorList ? CallArgument::Kind::kTensorList : CallArgument::Kind::kScalarList;
      a.first = next;
      for (const c10::IValue& item : v.toListRef()) {
        const bool absent = item.isNone() || (item.isTensor() && !item.toTensor().defined());
        a.absent.push_back(absent);
        if (!absent) ++next;
        ++a.count;
      }
    } else if (op.kinds[i] == ArgumentKind::kAttribute || op.kinds[i] == ArgumentKind::kScalar) {
      a.attribute = ToAttribute(v, op.op.schema().arguments()[i]);
      constant = v.isDevice() ? c10::IValue(c10::Device(c10::kCPU)) : v;
    }
    d.call->arguments.push_back(std::move(a));
    d.kernel->constants.push_back(std::move(constant));
  }
}

// What is written to an out= tensor is computed in its type, where that is not said and the operator has a choice. For
// norms of complex numbers, which are real, the type would be the numbers'.
void DescribeTypeOfOut(const Operator& op, at::ArrayRef<c10::IValue> arguments, Draft& d) {
  if (op.dtype < 0 || op.out.size() != 1 || !op.functional_form || !arguments[op.dtype].isNone()) return;
  const at::Tensor& out = arguments[op.out[0]].toTensor();
  for (const at::Tensor& t : TensorsOf(arguments[0])) {
    if (t.is_complex() && !out.is_complex()) return;
  }
  const c10::IValue type = static_cast<int64_t>(out.scalar_type());
  d.call->arguments[op.dtype].attribute = ToAttribute(type, op.op.schema().arguments()[op.dtype]);
  d.kernel->constants[op.dtype] = type;
}

void DescribeOperands(const Operator& op, const Collected& collected, Draft& d) {
  for (size_t i = 0; i < collected.operands.size(); ++i) {
    const Layout* layout = collected.layouts[i];
    OperandType type;
    type.is_scalar = layout == nullptr;
    type.type = layout ? layout->type : TensorType{collected.scalars[i].dtype, {}};
    d.call->operands.push_back(std::move(type));
    d.kernel->scalars.push_back(collected.scalars[i]);
    d.kernel->operands.push_back(layout ? layout->scalar_type : c10::ScalarType::Undefined);
  }
  if (!op.seeded) return;
  for (int i = 0; i < 2; ++i) d.call->operands.push_back({TensorType{DType::kInt64, {}}, true});
}

void AddResult(Draft& d, const at::Tensor& t) {
  const c10::ScalarType type = t.defined() ? t.scalar_type() : c10::ScalarType::Float;
  const Layout* layout = nullptr;
  if (t.defined()) layout = InternLayout(type, t.sizes(), t.strides());
  // A result that is not asked for (an output mask) is an empty placeholder.
  d.call->results.push_back(layout ? layout->type : TensorType{DType::kFloat32, {0}});
  d.signature->results.push_back(layout);
  d.kernel->results.push_back(type);
  if (layout) d.signature->random_counters += static_cast<uint64_t>(t.numel()) * (t.is_complex() ? 2 : 1);
}

// The results: `returned` but for aliases, then the written arguments.
void DescribeResults(const Operator& op, const Inference& inference, Draft& d) {
  const torch::jit::Stack& returned = inference.returns;
  for (size_t r = 0; r < op.return_alias.size(); ++r) {
    if (op.return_alias[r] >= 0) continue;
    if (returned[r].isTensor()) {
      AddResult(d, returned[r].toTensor());
    } else {
      const std::vector<at::Tensor> list = TensorsOf(returned[r]);
      d.signature->lists.push_back(list.size());
      for (const at::Tensor& t : list) AddResult(d, t);
    }
  }
  for (int m : op.mutated) {
    const auto alias = std::find(op.return_alias.begin(), op.return_alias.end(), m);
    const bool is_returned = alias != op.return_alias.end();
    const c10::IValue& written = is_returned ? returned[alias - op.return_alias.begin()] : inference.arguments[m];
    for (const at::Tensor& t : TensorsOf(written)) AddResult(d, t);
  }
  for (const OperandType& operand : d.call->operands) {  // some draw for each of an operand's elements
    if (operand.is_scalar) continue;
    const auto elements = static_cast<uint64_t>(operand.type.elements());
    d.signature->random_counters = std::max(d.signature->random_counters, elements);
  }
}

// An out= tensor of another type than a pointwise operator computes in gets the result converted: what is recorded has
// the type that the functional form's result has.
void DescribeTypesBesideOut(const Operator& op, at::ArrayRef<c10::IValue> arguments, Draft& d) {
  if (op.out.empty() || !op.pointwise || !op.functional_form || op.dtype >= 0) return;
  const DType type = d.call->results[0].dtype;
  if (std::all_of(d.call->operands.begin(), d.call->operands.end(),
                  [&](const OperandType& o) { return o.is_scalar || o.type.dtype == type; })) {
    return;
  }
  torch::jit::Stack operands;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!op.IsOut(static_cast<int>(i))) operands.push_back(arguments[i]);
  }
  const std::optional<Inference> inference =
      AskPyTorch(Operator::Of(op.recorded), operands, c10::DeviceType::PrivateUse1);
  if (!inference || inference->returns.size() != d.call->results.size()) return;
  for (size_t r = 0; r < inference->returns.size(); ++r) {
    const c10::ScalarType computed = inference->returns[r].toTensor().scalar_type();
    const Layout*& layout = d.signature->results[r];
    layout = InternLayout(computed, layout->sizes(), layout->stride_ref());
    d.call->results[r] = layout->type;
    d.kernel->results[r] = computed;
  }
}

// Of several tensors the last argument's, which is no condition: one that is of floats makes the others so.
void DescribeDefaultType(Draft& d) {
  const auto makes_floats = [](DType type) { return !c10::isIntegralType(ToScalarType(type), /*includeBool=*/true); };
  for (const OperandType& operand : d.call->operands) {
    if (!operand.is_scalar && makes_floats(operand.type.dtype)) return;
  }
  const DType computed = makes_floats(d.call->results[0].dtype) ? d.call->results[0].dtype : d.call->promoted;
  if (!makes_floats(computed)) return;
  d.kernel->default_type = c10::get_default_dtype_as_scalartype();
  d.kernel->computed = ToScalarType(computed);
  for (size_t i = 0; i < d.call->arguments.size(); ++i) {
    const CallArgument::Kind kind = d.call->arguments[i].kind;
    const bool tensors = kind == CallArgument::Kind::kTensor || kind == CallArgument::Kind::kTensorList;
    if (tensors) d.kernel->promoted = static_cast<int>(i);
  }
}

// Masks among the indices: at::index and its kin replace them by the positions that are true.
bool HasMasks(const Operator& op, at::ArrayRef<c10::IValue> arguments) {
  if (op.indices < 0) return false;
  const std::vector<at::Tensor> indices = TensorsOf(arguments[op.indices]);
  return std::any_of(indices.begin(), indices.end(), [](const at::Tensor& t) {
    return t.scalar_type() == c10::kBool || t.scalar_type() == c10::kByte;
  });
}

// Whether anything computes what the call records: custom operators may have shapes alone.
bool HasKernel(const Operator& op, const Call& call) {
  return op.recorded.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU) || Engine::Get().backend().CanLower(call);
}

// A list's numbers are operands each, which hold no wide ones.
bool ListsWideNumbers(const Operator& op, at::ArrayRef<c10::IValue> arguments) {
  if (op.packed >= 0 && arguments[op.packed].toTensor().is_complex()) return true;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (op.kinds[i] != ArgumentKind::kScalarList || arguments[i].isNone()) continue;
    const auto list = arguments[i].toListRef();
    if (std::any_of(list.begin(), list.end(), [](const c10::IValue& n) { return IsWide(n.toScalar()); })) return true;
  }
  return false;
}

// A gradient that nothing gave, where the schema wants a tensor: what comes of it is the kernel's affair.
bool LacksTensor(const Operator& op, at::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool required = op.op.schema().arguments()[i].type()->kind() == c10::TypeKind::TensorType;
    if (required && !arguments[i].toTensor().defined()) return true;
  }
  return false;
}

// Operators of numbers alone may fill an out= tensor in the shape that it has, if the number of elements is right:
// arange and linspace do.
bool MayKeepShapeOfOut(const Operator& op, at::ArrayRef<c10::IValue> arguments, const Collected& collected,
                       const Signature& s) {
  const auto& layouts = collected.layouts;
  const bool numbers = std::all_of(layouts.begin(), layouts.end(), [](const Layout* l) { return l == nullptr; });
  if (!numbers || op.out.size() != 1 || s.results.size() != 1) return false;
  const at::Tensor& out = arguments[op.out[0]].toTensor();
  return out.sizes() != s.results[0]->sizes() && out.numel() == s.results[0]->type.elements();
}

// What is neither an in-place form nor an out= one may give an argument without elements its size as it writes it: the
// observers of quantization do so with what they have seen of each channel.
bool MaySizeWhatItWrites(const Operator& op, at::ArrayRef<c10::IValue> arguments) {
  if (op.functional_form) return false;
  return std::any_of(op.mutated.begin(), op.mutated.end(), [&](int m) {
    const std::vector<at::Tensor> written = TensorsOf(arguments[m]);
    return !op.IsOut(m) && std::any_of(written.begin(), written.end(), [](const at::Tensor& t) { return !t.numel(); });
  });
}

// A call whose results' sizes depend on data: recordable where the backend can make them at their largest.
void DescribeBounded(const Operator& op, at::ArrayRef<c10::IValue> arguments, const Collected& collected, Draft& d) {
  d.signature->recordable = false;
  if (!op.mutated.empty()) return;
  d.kernel = std::make_shared<HostKernel>(op.recorded);
  d.call->op = op.name;
  d.call->promoted = Promoted(op, arguments);
  DescribeArguments(op, arguments, collected, d);
  DescribeOperands(op, collected, d);
  d.call->results = Engine::Get().backend().Bounds(*d.call);
  if (d.call->results.empty()) return;
  for (const TensorType& type : d.call->results) {
    d.signature->results.push_back(InternLayout(type));
  }
  FinishCall(*d.call);
  d.signature->recordable = d.signature->bounded = d.call->needs_program;
}

// As casts of quantized weights do.
bool WidensBytes(const Call& call) {
  if (call.operands.size() != 1 || call.operands[0].is_scalar || call.results.size() != 1) return false;
  const TensorType &from = call.operands[0].type, &to = call.results[0];
  return SizeOf(from.dtype) == 1 && SizeOf(to.dtype) > 1 && from.dims == to.dims;
}

}  // namespace

std::vector<at::Tensor> TensorsOf(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  if (value.isTensor()) {
    if (value.toTensor().defined()) tensors.push_back(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) tensors.push_back(item.toTensor());
    }
  }
  return tensors;
}

SignatureRef Infer(const Operator& op, at::ArrayRef<c10::IValue> arguments, const Collected& collected) {
  Metrics::Get().inferences.fetch_add(1, std::memory_order_relaxed);
  Draft d;
  Signature* const s = d.signature.get();
  if (!op.returns_tensors || ListsWideNumbers(op, arguments) || LacksTensor(op, arguments)) {
    s->recordable = false;
    return d.Finish();
  }
  if (op.indices >= 0) {  // the Meta kernel's own complaint is of another type than the CPU's
    at::native::checkIndexTensorTypes(arguments[op.indices].to<c10::List<std::optional<at::Tensor>>>(), true);
  }
  const bool masks = HasMasks(op, arguments), holds_calls = Engine::Get().backend().HoldsCalls();
  const bool sized = op.output_size >= 0 && !arguments[op.output_size].isNone();
  if (op.data_dependent && !sized && (op.indices < 0 || masks)) {
    s->expands_masks = masks && !holds_calls;
    DescribeBounded(op, arguments, collected, d);
    return d.Finish();
  }
  d.kernel = std::make_shared<HostKernel>(op.recorded);
  d.kernel->seeded = op.seeded;
  d.kernel->any_strides = op.any_strides;
  d.kernel->products = op.has_products;
  if (op.functional_form && op.out.empty()) {
    d.kernel->in_place = op.op;
    d.kernel->in_place_mutated = op.mutated;
  }
  d.call->op = op.name;
  if (op.has_products) d.call->precision = ProductPrecision();
  DescribeArguments(op, arguments, collected, d);
  DescribeOperands(op, collected, d);
  std::optional<Inference> inference;
  try {
    inference = AskPyTorch(op, arguments, c10::DeviceType::PrivateUse1);
  } catch (...) {
    // Its inference has words, and at times types, of its own for what the CPU's kernel refuses, and refuses some calls
    // that the CPU's kernel takes (index_reduce of no indices): those run at once. So do a library's, whose inference
    // refuses stand-ins where sizes depend on data (torchvision's nms).
    torch::jit::Stack none;
    const HostCheck check = CheckOnHost(op, *d.call, collected, arguments, none);
    if (check.complaint) std::rethrow_exception(check.complaint);
    if (!check.accepted || Flags::Get().fallback == "error") throw;
  }
  if (!inference) {
    s->recordable = false;
    return d.Finish();
  }
  DescribeTypeOfOut(op, arguments, d);
  d.call->promoted = Promoted(op, inference->arguments);
  if (!op.functional_form) d.kernel->mutated = op.mutated;
  const HostCheck check = CheckOnHost(op, *d.call, collected, arguments, inference->returns);
  DescribeResults(op, *inference, d);
  DescribeTypesBesideOut(op, arguments, d);
  if (!d.call->results.empty()) DescribeDefaultType(d);
  const bool numbers = std::count(collected.layouts.begin(), collected.layouts.end(), nullptr) > 0;
  if (!check.draws && !numbers) s->random_counters = 0;  // other numbers might make it draw
  s->recordable = check.AllowsToRecord(*d.call) && HasKernel(op, *d.call) && !WritesOverItself(op, arguments) &&
                  !ReadsWhatItWrote(op, arguments) && !MayKeepShapeOfOut(op, arguments, collected, *s) &&
                  !MaySizeWhatItWrites(op, arguments);
  if (!s->recordable) {
    s->refused = check.complaint != nullptr;
    return d.Finish();
  }
  FinishCall(*d.call);
  s->expands_masks = masks && !holds_calls && !d.call->needs_program;
  s->plain = s->results.size() == 1 && s->results[0] != nullptr && (s->results[0]->dense || !op.mutated.empty()) &&
             op.out.empty() && !op.seeded;
  d.call->host_kernel = std::move(d.kernel);
  return d.Finish();
}

void FinishCall(Call& call) {
  for (const TensorType& type : call.results) {
    call.value_types.push_back(&InternLayout(type)->type);
    call.result_bytes += type.bytes();
  }
  call.structure_hash = call.StructureHash();
  const CompilerBackend& backend = Engine::Get().backend();
  call.boundary = backend.IsBoundary(call);
  call.is_view = call.op == "tpu::view";
  if (!backend.HoldsCalls()) {
    call.needs_program = backend.CanLower(call);
    call.alone = !call.needs_program;
  }
  call.held = (call.is_view || WidensBytes(call)) && !call.alone;
}

}  // namespace tpu

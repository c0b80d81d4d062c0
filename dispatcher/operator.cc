// What an operator's schema says of how it is recorded.
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <unordered_map>

#include "compiler/operators.h"
#include "dispatcher/calls.h"
#include "dispatcher/structured.h"
#include "jit/engine.h"
#include "jit/metrics.h"
#include "runtime/flags.h"
#include "runtime/hash.h"

namespace tpu {
namespace {

using c10::FunctionSchema;
using c10::TypeKind;

// Without Optional.
c10::TypePtr Plain(const c10::TypePtr& t) {
  return t->kind() == TypeKind::OptionalType ? t->expectRef<c10::OptionalType>().getElementType() : t;
}

ArgumentKind KindOf(const c10::Argument& argument) {
  const c10::TypePtr type = Plain(argument.real_type());
  switch (type->kind()) {
    case TypeKind::TensorType:
      return ArgumentKind::kTensor;
    case TypeKind::NumberType:
    case TypeKind::FloatType:
      return ArgumentKind::kScalar;
    case TypeKind::GeneratorType:
      return ArgumentKind::kGenerator;
    case TypeKind::ListType: {
      const c10::TypePtr item = Plain(type->expectRef<c10::ListType>().getElementType());
      if (item->kind() == TypeKind::TensorType) return ArgumentKind::kTensorList;
      if (item->kind() == TypeKind::NumberType) return ArgumentKind::kScalarList;
      return ArgumentKind::kAttribute;
    }
    default:
      return ArgumentKind::kAttribute;
  }
}

bool IsWritten(const c10::Argument& a) { return a.alias_info() != nullptr && a.alias_info()->isWrite(); }

bool IsListOfOptional(const c10::Argument& a) {
  return Plain(a.real_type())->expectRef<c10::ListType>().getElementType()->kind() == TypeKind::OptionalType;
}

bool IsTensors(const c10::TypePtr& type) {
  return type->kind() == TypeKind::TensorType ||
         (type->kind() == TypeKind::ListType &&
          type->expectRef<c10::ListType>().getElementType()->kind() == TypeKind::TensorType);
}

// Same argument types in the same order, but for `skip`.
bool ArgumentsMatch(const FunctionSchema& functional, const FunctionSchema& schema, const std::vector<int>& skip) {
  size_t j = 0;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (std::find(skip.begin(), skip.end(), static_cast<int>(i)) != skip.end()) continue;
    if (j >= functional.arguments().size()) return false;
    const c10::Argument& a = schema.arguments()[i];
    const c10::Argument& b = functional.arguments()[j++];
    if (a.name() != b.name() || *a.real_type() != *b.real_type() || IsWritten(b)) return false;
  }
  return j == functional.arguments().size();
}

// The operator with the same meaning that writes nothing. In-place: "add_" -> "add", "normal_" -> "normal_functional",
// the overload of the same name or else another ("pow_.Tensor" -> "pow.Tensor_Tensor"); out=: another overload of the
// same name. Results: the operator's new tensors, then the written arguments in order.
std::optional<c10::OperatorHandle> FunctionalForm(const Operator& op) {
  const FunctionSchema& schema = op.op.schema();
  static const auto* by_name = [] {
    auto* map = new std::unordered_map<std::string, std::vector<std::string>>();
    for (const c10::OperatorName& n : c10::Dispatcher::singleton().getAllOpNames()) {
      (*map)[n.name].push_back(n.overload_name);
    }
    return map;
  }();
  std::string base = schema.name();
  if (op.out.empty()) {
    if (base.back() != '_') return std::nullopt;
    base.pop_back();
  } else if (base.back() == '_') {
    return std::nullopt;
  }
  const size_t new_tensors = std::count(op.return_alias.begin(), op.return_alias.end(), -1);
  for (const std::string& name : {base, base + "_functional"}) {
    const auto overloads = by_name->find(name);
    if (overloads == by_name->end()) continue;
    std::optional<c10::OperatorHandle> form;
    for (const std::string& overload : overloads->second) {
      const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
      if (!handle || !ArgumentsMatch(handle->schema(), schema, op.out)) continue;
      if (handle->schema().returns().size() != new_tensors + op.mutated.size()) continue;
      if (!form || overload == schema.overload_name()) form = handle;
    }
    if (form) return form;
  }
  return std::nullopt;
}

// Forgets operators whose library ends: the same name may be defined anew, with another schema or other results. Told
// under the lock of PyTorch's dispatcher: a kernel of Python's might wait for who waits for that, so nothing is run
// here, and what is queued of the operator fails.
class Deregistrations final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override;
};

struct Operators {
  std::mutex mutex;
  std::unordered_map<c10::OperatorHandle, std::unique_ptr<Operator>> by_handle;
  std::vector<std::unique_ptr<Operator>> forgotten;  // others may still hold references
  c10::RegistrationHandleRAII listening =
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Deregistrations>());
};

Operators& AllOperators() {
  static auto* const operators = new Operators();
  return *operators;
}

void Deregistrations::onOperatorDeregistered(const c10::OperatorHandle& op) {
  Operators& operators = AllOperators();
  std::lock_guard<std::mutex> lock(operators.mutex);
  for (auto it = operators.by_handle.begin(); it != operators.by_handle.end();) {
    const auto item = it++;
    if (item->second->op != op && item->second->recorded != op) continue;
    operators.forgotten.push_back(std::move(item->second));
    operators.by_handle.erase(item);
  }
}

}  // namespace

Operator::Operator(const c10::OperatorHandle& handle) : op(handle), recorded(handle) {
  const FunctionSchema& schema = op.schema();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& a = schema.arguments()[i];
    kinds.push_back(KindOf(a));
    const bool number = kinds.back() == ArgumentKind::kScalar && a.default_value() && a.default_value()->isScalar();
    defaults.push_back(number ? std::optional(a.default_value()->toScalar()) : std::nullopt);
    is_float.push_back(Plain(a.real_type())->kind() == TypeKind::FloatType);
    if (kinds.back() == ArgumentKind::kTensorList && IsListOfOptional(a)) indices = static_cast<int>(i);
    if (a.name() == "dtype") dtype = static_cast<int>(i);
    if (a.name() == "check_errors") check_errors = static_cast<int>(i);
    if (a.name() == "output_size") output_size = static_cast<int>(i);
    if (a.name() == "scalars" && kinds.back() == ArgumentKind::kTensor) packed = static_cast<int>(i);
    if (a.name() == "lr" && kinds.back() == ArgumentKind::kTensor) rate = static_cast<int>(i);
    if (!IsWritten(a)) continue;
    mutated.push_back(static_cast<int>(i));
    if (a.is_out()) out.push_back(static_cast<int>(i));
  }
  for (const c10::Argument& r : schema.returns()) {
    int alias = -1;
    if (r.alias_info() != nullptr) {
      for (int m : mutated) {
        if (schema.arguments()[m].alias_info()->beforeSets() == r.alias_info()->beforeSets()) alias = m;
      }
      if (alias < 0) is_view = true;
    }
    return_alias.push_back(alias);
    if (!IsTensors(r.real_type())) returns_tensors = false;
  }
  if (schema.returns().empty() && mutated.empty()) returns_tensors = false;  // assertions: no value would run them
  if (!mutated.empty()) {
    if (const auto form = FunctionalForm(*this)) {
      recorded = *form;
      functional_form = true;
    }
  }
  for (const c10::OperatorHandle& used : {op, recorded}) {
    if (used.schema().getNamespace() == "aten") continue;
    pins.push_back(c10::Dispatcher::singleton().registerName(used.operator_name()));
  }
  name = c10::toString(recorded.operator_name());
  seeded = op.hasTag(at::Tag::nondeterministic_seeded);
  data_dependent = op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
  // What sizes its out= tensors itself would be believed to have done so, but for kernels of ours.
  structured = (out.empty() || op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse3)) && IsStructured(op);
  for_each = IsForEach(name);
  pointwise = recorded.hasTag(at::Tag::pointwise);
  any_strides = pointwise || recorded.hasTag(at::Tag::reduction) || HasStructuredKernel(op);
  // Numbers alone decide the shape of arange's result.
  bool reads_tensors = false;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const bool tensors = kinds[i] == ArgumentKind::kTensor || kinds[i] == ArgumentKind::kTensorList;
    reads_tensors = reads_tensors || (tensors && !IsOut(static_cast<int>(i)));
  }
  has_products = aten::HasProducts(name);
  static_scalars = !reads_tensors || Engine::Get().backend().StaticScalars(name);
}

bool Operator::IsDefault(size_t argument, const c10::Scalar& value) const {
  const std::optional<c10::Scalar>& d = defaults[argument];
  if (!d) return false;
  if (value.isIntegral(false)) return d->isIntegral(false) && d->toLong() == value.toLong();
  return value.isFloatingPoint() && d->isFloatingPoint() && d->toDouble() == value.toDouble();
}

size_t SpareCalls() { return std::max(Flags::Get().known_ops / 8, 1024); }

Operator& Operator::Of(const c10::OperatorHandle& op) {
  Operators& operators = AllOperators();
  {
    std::lock_guard<std::mutex> lock(operators.mutex);
    const auto it = operators.by_handle.find(op);
    if (it != operators.by_handle.end()) return *it->second;
  }
  // Made without the lock: that takes the lock of PyTorch's dispatcher, under which Deregistrations takes this one.
  auto made = std::make_unique<Operator>(op);
  std::lock_guard<std::mutex> lock(operators.mutex);
  return *operators.by_handle.try_emplace(op, std::move(made)).first->second;
}

size_t Operator::Words::operator()(absl::Span<const uint64_t> w) const {
  uint64_t h = w.size();
  for (uint64_t x : w) h = HashMix(h, x);
  return h;
}

const SignatureRef& Operator::Find(absl::Span<const uint64_t> words) {
  constexpr size_t kWords = 12;
  struct Line {
    const Operator* op = nullptr;
    size_t size = 0;
    uint64_t words[kWords];
    SignatureRef signature;
  };
  static thread_local Line lines[256], longer;
  if (words.size() > kWords) return longer.signature = FindShared(words);
  uint64_t h = reinterpret_cast<uintptr_t>(this) >> 4;
  for (uint64_t w : words) h = (h ^ w) * 0x9E3779B97F4A7C15ull;
  Line& line = lines[h >> 56];
  if (line.op == this && line.size == words.size()) {
    bool same = true;
    for (size_t i = 0; i < words.size(); ++i) same &= line.words[i] == words[i];
    if (same) return line.signature;
  }
  line.signature = FindShared(words);
  line.op = line.signature ? this : nullptr;
  line.size = words.size();
  std::copy(words.begin(), words.end(), line.words);
  return line.signature;
}

SignatureRef Operator::FindShared(absl::Span<const uint64_t> words) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = signatures_.find(words);
  return it == signatures_.end() ? nullptr : it->second;
}

SignatureRef Operator::Insert(absl::Span<const uint64_t> words, SignatureRef signature) {
  static std::atomic<size_t> count{0};
  static std::atomic<size_t> room{SpareCalls()};
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto [it, inserted] = signatures_.try_emplace(std::vector<uint64_t>(words.begin(), words.end()), signature);
    if (!inserted) return it->second;
  }
  if (++count > room) {
    count = GiveUpSignatures();
    room = count + SpareCalls();
  }
  return signature;
}

// Those that no thread has found latest, of calls in no known fragment. Returns how many are left.
size_t Operator::GiveUpSignatures() {
  std::vector<SignatureRef> given_up;  // they end without the locks
  size_t left = 0;
  Operators& operators = AllOperators();
  std::lock_guard<std::mutex> lock(operators.mutex);
  for (const auto& [handle, op] : operators.by_handle) {
    std::lock_guard<std::mutex> op_lock(op->mutex_);
    absl::erase_if(op->signatures_, [&](auto& item) {
      SignatureRef& signature = item.second;
      if (signature.use_count() > 1 || signature->call.use_count() > 1) return false;
      given_up.push_back(std::move(signature));
      return true;
    });
    left += op->signatures_.size();
  }
  Metrics::Get().signatures_given_up.fetch_add(static_cast<int64_t>(given_up.size()), std::memory_order_relaxed);
  return left;
}

}  // namespace tpu

#include "dispatcher/capture.h"

#include <memory>
#include <utility>

#include "dispatcher/generator.h"
#include "dispatcher/streams.h"
#include "jit/engine.h"

namespace tpu {
namespace {

thread_local Capture* current = nullptr;
const TensorType kNumber{};  // placeholders of numbers: the call says what they are

}  // namespace

Capture::Capture()
    : unreadable_(std::make_shared<const absl::Status>(
          absl::FailedPreconditionError("the values of a graph that is being captured can't be read"))) {
  TORCH_CHECK(current == nullptr, "tpu: a compiled graph can't be captured inside another");
  current = this;
}
Capture::~Capture() { current = nullptr; }
Capture* Capture::Current() { return current; }

ValueRef Capture::NewPlaceholder(const TensorType& type) { return MakeRef<Value>(&type, unreadable_); }

int32_t Capture::NewSlot(ValueRef value) {
  const int32_t slot = static_cast<int32_t>(values_.size());
  if (value) slots_.emplace(value.get(), slot);
  values_.push_back(std::move(value));
  constants.emplace_back();
  return slot;
}

ValueRef Capture::AddInput(const TensorType& type, int32_t* slot) {
  ValueRef value = NewPlaceholder(type);
  *slot = NewSlot(value);
  return value;
}

int32_t Capture::AddNumber(const at::Tensor& host_scalar) {
  ValueRef value = NewPlaceholder(kNumber);
  numbers_.emplace_back(host_scalar, value.get());
  return NewSlot(std::move(value));
}

Value* Capture::NumberOf(const at::Tensor& host_scalar) const {
  for (const auto& [tensor, value] : numbers_) {
    if (tensor.unsafeGetTensorImpl() == host_scalar.unsafeGetTensorImpl()) return value;
  }
  CheckConstant(host_scalar);
  return nullptr;
}

void Capture::CheckConstant(const at::Tensor& host) const {
  for (const auto& [tensor, value] : numbers_) {
    TORCH_CHECK_NOT_IMPLEMENTED(!tensor.is_alias_of(host), "tpu: a tensor of the CPU is used as more than a number");
  }
}

int32_t Capture::SlotOf(Value* value) {
  const auto it = slots_.find(value);
  if (it != slots_.end()) return it->second;
  const int32_t slot = NewSlot(ValueRef(value));
  constants[slot] = ValueRef(value);
  return slot;
}

void Capture::Record(const CallRef& call, absl::Span<const Operand> given, absl::Span<ValueRef> results) {
  CapturedCall captured{call, static_cast<uint32_t>(operands.size()), 0};
  for (const Operand& o : given) {
    operands.push_back(o.value != nullptr ? CapturedOperand{SlotOf(o.value), 0} : CapturedOperand{-1, o.bits});
  }
  captured.results_begin = static_cast<uint32_t>(values_.size());
  for (size_t i = 0; i < call->results.size(); ++i) {
    results[i] = NewPlaceholder(*call->value_types[i]);
    NewSlot(results[i]);
  }
  calls.push_back(std::move(captured));
}

void Capture::AddSeed(const std::optional<at::Generator>& generator, uint64_t counters, c10::DeviceIndex device,
                      absl::Span<Operand> seed_and_offset) {
  CapturedRandom random{.generator = generator, .counters = counters};
  const at::Generator& source = generator ? *generator : DefaultGenerator(device);
  for (const auto& [input, index] : generators_) {
    if (SameState(source, input)) random.generator_input = index;
  }
  for (Operand& o : seed_and_offset) {
    ValueRef value = NewPlaceholder(kNumber);
    o.value = value.get();
    const int32_t slot = NewSlot(std::move(value));
    if (random.seed_slot < 0) random.seed_slot = slot;
  }
  randoms.push_back(std::move(random));
}

void RecordCall(c10::DeviceIndex device, const CallRef& call, absl::Span<const Operand> operands,
                absl::Span<ValueRef> results) {
  if (C10_UNLIKELY(current != nullptr)) return current->Record(call, operands, results);
  Engine::Get().window(CurrentStream(device)).Record(call, operands, results);
}

}  // namespace tpu

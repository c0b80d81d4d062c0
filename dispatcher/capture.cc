#include "dispatcher/capture.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "dispatcher/streams.h"
#include "dispatcher/values.h"
#include "jit/engine.h"

namespace tpu {
namespace {

thread_local Capture* current = nullptr;
const TensorType kNumber{};  // placeholders of numbers: the call says what they are

void SeedOperands(const std::optional<at::Generator>& generator, c10::DeviceIndex device, uint64_t seed,
                  uint64_t offset, absl::Span<Operand> seed_and_offset) {
  if (current != nullptr) return current->AddSeed(PhiloxOf(generator, device), offset, seed_and_offset);
  seed_and_offset[0].bits = seed;
  seed_and_offset[1].bits = offset;
}

}  // namespace

Capture::Capture(c10::DeviceIndex device)
    : device_(device),
      unreadable_(std::make_shared<const absl::Status>(
          absl::FailedPreconditionError("the values of a graph that is being captured can't be read"))) {
  TORCH_CHECK(current == nullptr, "tpu: a graph can't be captured inside another");
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
  Capture::CheckConstant(host_scalar);
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

Capture::Source& Capture::Find(const PhiloxGenerator& generator) {
  for (Source& s : sources_) {
    if (generator.SharesStateWith(PhiloxOf(s.generator, device_))) return s;
  }
  static std::atomic<uint64_t> origins{0};
  const uint64_t origin = kCapturedOffsets | origins.fetch_add(1) * kOffsetsOfOne;
  Source made{at::Generator(generator.graphsafe_get_state()), origin, {generator.current_seed(), origin}, {}};
  for (const auto& [input, index] : inputs_) {
    if (SameState(made.generator, input)) made.captured.input = index;
  }
  // A compiled graph draws from what is the default one when it is called.
  if (stream() != nullptr || !SameState(made.generator, DefaultGenerator(device_))) {
    made.captured.generator = made.generator;
  }
  return sources_.emplace_back(std::move(made));
}

std::vector<CapturedGenerator> Capture::TakeGenerators() {
  std::vector<CapturedGenerator> taken;
  for (Source& s : sources_) {
    s.captured.counters = s.state.offset - s.origin;
    taken.push_back(std::move(s.captured));
  }
  return taken;
}

void Capture::AddSeed(const PhiloxGenerator& generator, uint64_t offset, absl::Span<Operand> seed_and_offset) {
  Source& source = Find(generator);
  CapturedRandom random{.offset = offset - source.origin};
  for (Operand& o : seed_and_offset) {
    ValueRef value = NewPlaceholder(kNumber);
    o.value = value.get();
    const int32_t slot = NewSlot(std::move(value));
    if (random.seed_slot < 0) random.seed_slot = slot;
  }
  source.captured.randoms.push_back(random);
}

// Calls whose results nobody reads go; of the others is found out after which one each value is needed no more.
CapturedCalls::CapturedCalls(Capture& capture, absl::Span<const int32_t> wanted)
    : device_(capture.device()),
      operands_(std::move(capture.operands)),
      generators_(capture.TakeGenerators()),
      used_(capture.constants.size()) {
  for (size_t s = 0; s < capture.constants.size(); ++s) {
    if (capture.constants[s]) constants_.emplace_back(s, std::move(capture.constants[s]));
  }
  for (int32_t slot : wanted) used_[slot] = true;
  for (size_t i = capture.calls.size(); i-- > 0;) {
    CapturedCall& c = capture.calls[i];
    std::vector<int32_t> release;
    for (size_t r = 0; r < c.call->results.size(); ++r) {
      if (!used_[c.results_begin + r]) release.push_back(static_cast<int32_t>(c.results_begin + r));
    }
    if (release.size() == c.call->results.size()) continue;
    for (const CapturedOperand& o : OperandsOf(c)) {
      if (o.slot < 0 || used_[o.slot]) continue;
      used_[o.slot] = true;
      release.push_back(o.slot);
    }
    calls_.push_back(std::move(c));
    releases_.push_back(std::move(release));
  }
  std::reverse(calls_.begin(), calls_.end());
  std::reverse(releases_.begin(), releases_.end());
}

std::vector<CapturedCalls::Slot> CapturedCalls::Slots() const {
  std::vector<Slot> slots(used_.size());
  for (const auto& [slot, value] : constants_) slots[slot].value = value;
  return slots;
}

void CapturedCalls::Draw(const CapturedGenerator& captured, const at::Generator& generator,
                         std::vector<Slot>& slots) const {
  const auto [seed, first] = ReservePhilox(generator, captured.counters, device_);
  for (const CapturedRandom& r : captured.randoms) {
    std::array<Operand, 2> numbers;
    SeedOperands(generator, device_, seed, first + r.offset, absl::MakeSpan(numbers));
    for (size_t i = 0; i < numbers.size(); ++i) {
      slots[r.seed_slot + i] = {ValueRef(numbers[i].value), numbers[i].bits};
    }
  }
}

void CapturedCalls::Record(std::vector<Slot>& slots, absl::Span<const int32_t> written,
                           absl::FunctionRef<void(size_t)> done) const {
  Window& window = Engine::Get().window(CurrentStream(device_));
  absl::InlinedVector<Operand, 16> operands;
  absl::InlinedVector<ValueRef, 8> results;
  size_t next = 0;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const CapturedCall& c = calls_[i];
    operands.clear();
    for (const CapturedOperand& o : OperandsOf(c)) {
      operands.push_back(o.slot >= 0 ? Operand{slots[o.slot].value.get(), slots[o.slot].bits}
                                     : Operand{nullptr, o.bits});
    }
    results.resize(c.call->results.size());
    current ? current->Record(c.call, operands, absl::MakeSpan(results))
            : window.Record(c.call, operands, absl::MakeSpan(results));
    if (C10_UNLIKELY(Engine::Get().mode() == Mode::kDebug && current == nullptr)) {
      for (const ValueRef& result : results) AwaitBuffer(result, c.call->op);
    }
    for (size_t r = 0; r < results.size(); ++r) slots[c.results_begin + r].value = std::move(results[r]);
    for (; next < written.size() && static_cast<size_t>(written[next]) < c.results_begin + results.size(); ++next) {
      done(next);
    }
    for (int32_t slot : releases_[i]) slots[slot].value = nullptr;
  }
  for (; next < written.size(); ++next) done(next);
}

void RecordCall(c10::DeviceIndex device, const CallRef& call, absl::Span<const Operand> operands,
                absl::Span<ValueRef> results) {
  if (C10_UNLIKELY(current != nullptr)) {
    TORCH_CHECK_NOT_IMPLEMENTED(device == current->device(), "tpu: a graph of device ", int{current->device()},
                                " can't hold an operation on device ", int{device});
    return current->Record(call, operands, results);
  }
  Engine::Get().window(CurrentStream(device)).Record(call, operands, results);
}

void DrawSeed(const std::optional<at::Generator>& generator, uint64_t counters, c10::DeviceIndex device,
              absl::Span<Operand> seed_and_offset) {
  const auto [seed, offset] = ReservePhilox(generator, counters, device);
  SeedOperands(generator, device, seed, offset, seed_and_offset);
}

}  // namespace tpu

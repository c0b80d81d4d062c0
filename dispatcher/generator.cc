#include "dispatcher/generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "dispatcher/capture.h"
#include "dispatcher/streams.h"

namespace tpu {
namespace {

constexpr size_t kStateBytes = 16;

// What a capture's offset counts from (capture.h); 0 for any other.
uint64_t OriginOf(uint64_t offset) { return offset < kCapturedOffsets ? 0 : offset / kOffsetsOfOne; }

}  // namespace

PhiloxGenerator::PhiloxGenerator(c10::DeviceIndex device, std::shared_ptr<State> state)
    : c10::GeneratorImpl(c10::Device(c10::kPrivateUse1, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state_(std::move(state)) {}

PhiloxGenerator::State& PhiloxGenerator::state() const {
  Capture* const capture = Capture::Current();
  return capture != nullptr ? capture->StateOf(*this) : *state_;
}

void PhiloxGenerator::SetState(const State& new_state) {
  State& state = this->state();
  const bool captured = Capture::Current() != nullptr;
  TORCH_CHECK(OriginOf(new_state.offset) == OriginOf(state.offset) && (!captured || new_state.seed == state.seed),
              captured
                  ? "tpu: a generator's state can't be set while a graph is captured, but to one that it had in that "
                    "capture: replays go on from what it is then"
                  : "tpu: the state that a generator had while a graph was captured is no state for other uses");
  state = new_state;
}

void PhiloxGenerator::set_current_seed(uint64_t seed) { SetState({.seed = seed, .offset = 0}); }
void PhiloxGenerator::set_offset(uint64_t offset) { SetState({.seed = state().seed, .offset = offset}); }

uint64_t PhiloxGenerator::seed() {
  const uint64_t seed = c10::detail::getNonDeterministicRandom();
  set_current_seed(seed);
  return seed;
}

void PhiloxGenerator::set_state(const c10::TensorImpl& state) {
  TORCH_CHECK_TYPE(state.layout() == c10::kStrided && state.device_type() == c10::kCPU &&
                       state.dtype() == caffe2::TypeMeta::Make<uint8_t>() && state.is_contiguous(),
                   "RNG state must be a torch.ByteTensor on the CPU");
  TORCH_CHECK(static_cast<size_t>(state.numel()) == kStateBytes, "RNG state of tpu has ", kStateBytes,
              " bytes (seed, offset), found ", state.numel());
  const auto* bytes = static_cast<const char*>(state.data());
  State set;
  std::memcpy(&set.seed, bytes, 8);
  std::memcpy(&set.offset, bytes + 8, 8);
  SetState(set);
}

c10::intrusive_ptr<c10::TensorImpl> PhiloxGenerator::get_state() const {
  // Not dispatched: modes that make tensors without memory (FakeTensorMode) must not make this one.
  const at::TensorBase found = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, at::kByte);
  auto* bytes = static_cast<char*>(found.mutable_data_ptr());
  std::memcpy(bytes, &state().seed, 8);
  std::memcpy(bytes + 8, &state().offset, 8);
  return found.getIntrusivePtr();
}

void PhiloxGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) {
  auto* other = dynamic_cast<PhiloxGenerator*>(state.get());
  TORCH_CHECK(other != nullptr, "graphsafe_set_state: not a generator of tpu");
  state_ = other->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> PhiloxGenerator::graphsafe_get_state() const {
  return c10::make_intrusive<PhiloxGenerator>(device().index(), state_);
}

PhiloxGenerator::State PhiloxGenerator::Reserve(uint64_t counters) {
  State& state = this->state();
  // Generators that share a state have a mutex each.
  return {.seed = state.seed, .offset = std::atomic_ref(state.offset).fetch_add(counters)};
}

PhiloxGenerator* PhiloxGenerator::clone_impl() const {
  TORCH_CHECK(Capture::Current() == nullptr,
              "tpu: a generator can't be cloned while a graph is captured: replays would not clone it");
  return new PhiloxGenerator(device().index(), std::make_shared<State>(*state_));
}

const at::Generator& DefaultGenerator(int device) {
  static const auto* generators = [] {
    auto* made = new std::vector<at::Generator>;
    for (int i = 0; i < DeviceCount(); ++i) made->push_back(at::make_generator<PhiloxGenerator>(i));
    return made;
  }();
  if (device < 0) device = CurrentDevice();
  CheckDevice(device);
  return (*generators)[device];
}

bool SameState(const at::Generator& a, const at::Generator& b) {
  const auto* x = dynamic_cast<const PhiloxGenerator*>(a.unsafeGetGeneratorImpl());
  const auto* y = dynamic_cast<const PhiloxGenerator*>(b.unsafeGetGeneratorImpl());
  return x != nullptr && y != nullptr && x->SharesStateWith(*y);
}

PhiloxGenerator& PhiloxOf(const std::optional<at::Generator>& generator, int device) {
  const at::Generator& source = generator && generator->defined() ? *generator : DefaultGenerator(device);
  TORCH_CHECK(source.device().type() == c10::kPrivateUse1, "Expected a 'tpu' device type for generator but found '",
              source.device().type(), "'");
  return *static_cast<PhiloxGenerator*>(source.unsafeGetGeneratorImpl());
}

std::pair<uint64_t, uint64_t> ReservePhilox(const std::optional<at::Generator>& generator, uint64_t counters,
                                            int device) {
  PhiloxGenerator& philox = PhiloxOf(generator, device);
  std::lock_guard<std::mutex> lock(philox.mutex_);
  const PhiloxGenerator::State taken = philox.Reserve(counters);
  return {taken.seed, taken.offset};
}

}  // namespace tpu

// The random numbers of the tpu device: a counter-based Philox generator, so that a number depends on the seed and its
// position in the program alone, never on mode, tier or where a fragment was cut.
//
// One default generator a device, made without creating the device; torch.Generator('tpu') makes others. State is 16
// bytes: seed, offset (little-endian, as DTensor expects). Any thread, under GeneratorImpl::mutex_. A thread that
// captures has states of its own (capture.h): whatever it does there, each replay does to what the state is then.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace tpu {

class PhiloxGenerator final : public c10::GeneratorImpl {
 public:
  struct State {
    uint64_t seed = c10::default_rng_seed_val;
    uint64_t offset = 0;
  };
  explicit PhiloxGenerator(c10::DeviceIndex device, std::shared_ptr<State> state = std::make_shared<State>());
  static c10::DeviceType device_type() { return c10::kPrivateUse1; }

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override { return state_->seed; }  // which captures can't set
  uint64_t seed() override;                                        // draws a new one from the system
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override { return state().offset; }
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // The state itself, shared, instead of a copy of its bytes: what torch.compile's graphs carry.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

  bool SharesStateWith(const PhiloxGenerator& other) const { return state_ == other.state_; }

  // Takes the next `counters` counters. The caller holds mutex_.
  State Reserve(uint64_t counters);

 private:
  PhiloxGenerator* clone_impl() const override;
  State& state() const;  // this thread's capture's, if it has one
  void SetState(const State& new_state);

  std::shared_ptr<State> state_;
};

// device < 0: the current one.
const at::Generator& DefaultGenerator(int device);

// Whether both take their numbers from one and the same state.
bool SameState(const at::Generator& a, const at::Generator& b);

// `generator`, or else the default one of `device` (< 0: the current one).
PhiloxGenerator& PhiloxOf(const std::optional<at::Generator>& generator, int device);

// (seed, first counter) for a random operation that uses `counters` counters of PhiloxOf(generator, device).
std::pair<uint64_t, uint64_t> ReservePhilox(const std::optional<at::Generator>& generator, uint64_t counters,
                                            int device = -1);

}  // namespace tpu

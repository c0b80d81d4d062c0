// What one thread records to be replayed later, instead of its going to a stream's window: calls over placeholders.
// Nothing runs.
//
// Made for one run of a compiled graph's Python (graph.h), or while a stream is captured (stream_graph.h); while it
// lives, RecordCall on that thread leads here. Placeholders hold values that are never there: reading one raises, which
// is how a graph that depends on data is found. Used by its own thread only.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "dispatcher/generator.h"
#include "dispatcher/layout.h"
#include "jit/value.h"
#include "jit/window.h"

namespace tpu {

// Captured values are numbered: a slot for each input, random number, constant and result. Operands are slots, or bits.
struct CapturedOperand {
  int32_t slot = -1;
  uint64_t bits = 0;
};

struct CapturedCall {
  CallRef call;
  uint32_t operands_begin;
  uint32_t results_begin;  // slot of the first result
};

// Random numbers of a generator, counted from its state before a replay: slots seed_slot (seed) and seed_slot + 1
// (first counter).
struct CapturedRandom {
  uint64_t offset = 0;
  int32_t seed_slot = -1;
};

struct CapturedGenerator {
  at::Generator generator;  // undefined: the device's default one
  int input = -1;           // or the compiled graph's input that it is
  uint64_t counters = 0;    // that a replay moves it by
  std::vector<CapturedRandom> randoms;
};

// The offsets of a generator's states in a capture: which they are counted from is not known before the replay. A range
// for each, so that a state is told from those of other captures and from those outside, which it can't be set to.
constexpr uint64_t kCapturedOffsets = uint64_t{1} << 63, kOffsetsOfOne = uint64_t{1} << 44;

class Capture {
 public:
  explicit Capture(c10::DeviceIndex device);
  virtual ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  // This thread's, or null.
  static Capture* Current();
  // That is captured; null where it is a compiled graph.
  virtual const Stream* stream() const { return nullptr; }
  c10::DeviceIndex device() const { return device_; }

  // Placeholders for the graph's inputs.
  ValueRef AddInput(const TensorType& type, int32_t* slot);
  int32_t AddNumber(const at::Tensor& host_scalar);
  void AddGenerator(const at::Generator& generator, int input) { inputs_.emplace_back(generator, input); }

  // What recording asks of it.
  void Record(const CallRef& call, absl::Span<const Operand> operands, absl::Span<ValueRef> results);
  void AddSeed(const PhiloxGenerator& generator, uint64_t offset, absl::Span<Operand> seed_and_offset);
  // What the generator's state is in the capture, where it moves as without one.
  PhiloxGenerator::State& StateOf(const PhiloxGenerator& generator) { return Find(generator).state; }
  // The placeholder of a number that is an input on the CPU; null for any other CPU tensor (a constant).
  Value* NumberOf(const at::Tensor& host_scalar) const;
  // Raises if the CPU tensor's elements are not those of later calls, as where it is an input.
  virtual void CheckConstant(const at::Tensor& host) const;

  std::vector<CapturedGenerator> TakeGenerators();

  bool Knows(const Value* value) const { return slots_.contains(value); }
  // The slot of a value that was recorded, is an input, or else a constant from now on.
  int32_t SlotOf(Value* value);

  std::vector<CapturedCall> calls;
  std::vector<CapturedOperand> operands;
  std::vector<ValueRef> constants;  // by slot; null for what differs from call to call

 private:
  struct Source {
    at::Generator generator;  // has the state that is captured, whatever states others get
    uint64_t origin;
    PhiloxGenerator::State state;
    CapturedGenerator captured;
  };
  Source& Find(const PhiloxGenerator& generator);
  int32_t NewSlot(ValueRef value);
  ValueRef NewPlaceholder(const TensorType& type);

  const c10::DeviceIndex device_;
  absl::flat_hash_map<const Value*, int32_t> slots_;
  std::vector<ValueRef> values_;  // all that have slots, so that addresses stay taken
  std::vector<std::pair<at::Tensor, Value*>> numbers_;
  std::vector<std::pair<at::Generator, int>> inputs_;  // that are generators
  std::vector<Source> sources_;
  std::shared_ptr<const absl::Status> unreadable_;
};

// The calls of a capture, to be recorded again. Immutable: any thread may.
class CapturedCalls {
 public:
  // What a replay knows of a slot.
  struct Slot {
    ValueRef value;
    uint64_t bits = 0;
  };

  CapturedCalls() = default;
  // Of the capture's calls those that the `wanted` slots depend on.
  CapturedCalls(Capture& capture, absl::Span<const int32_t> wanted);

  // Whether a replay uses it.
  bool Uses(int32_t slot) const { return used_[slot]; }
  const std::vector<CapturedCall>& calls() const { return calls_; }
  absl::Span<const CapturedOperand> OperandsOf(const CapturedCall& c) const {
    return absl::MakeConstSpan(operands_).subspan(c.operands_begin, c.call->operands.size());
  }
  const std::vector<CapturedGenerator>& generators() const { return generators_; }
  // With the constants in them.
  std::vector<Slot> Slots() const;
  // Fills in the captured generator's random numbers, from `generator`, which moves on.
  void Draw(const CapturedGenerator& captured, const at::Generator& generator, std::vector<Slot>& slots) const;
  // Records the calls, from and into `slots`; values are given up with the last call that reads them. `done` is told of
  // each of `written`, slots in increasing order, once it has its value, so that what it replaces can be given up, too.
  void Record(std::vector<Slot>& slots, absl::Span<const int32_t> written, absl::FunctionRef<void(size_t)> done) const;

 private:
  c10::DeviceIndex device_ = 0;
  std::vector<CapturedCall> calls_;
  std::vector<CapturedOperand> operands_;
  std::vector<std::vector<int32_t>> releases_;  // by call: slots it is the last to need
  std::vector<CapturedGenerator> generators_;
  std::vector<std::pair<int32_t, ValueRef>> constants_;
  std::vector<bool> used_;  // by slot
};

// Records the call: for this thread's Capture if there is one, else in the window of the device's current stream.
void RecordCall(c10::DeviceIndex device, const CallRef& call, absl::Span<const Operand> operands,
                absl::Span<ValueRef> results);
// The seed and first counter of a call that draws so many random numbers: the generator's next ones, or, for this
// thread's Capture, those of each replay.
void DrawSeed(const std::optional<at::Generator>& generator, uint64_t counters, c10::DeviceIndex device,
              absl::Span<Operand> seed_and_offset);

}  // namespace tpu

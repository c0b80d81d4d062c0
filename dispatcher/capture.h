// What one thread records on behalf of a compiled graph: calls over placeholders, kept for replay (graph.h) instead of
// going to a stream's window. Nothing runs.
//
// Made by CompiledGraph for the duration of one run of the graph's Python; while it lives, RecordCall on that thread
// leads here. Placeholders hold values that are never there: reading one raises, which is how a graph that depends on
// data is found. Used by its own thread only.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
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

// Random numbers that each replay takes from a generator: slots seed_slot (seed) and seed_slot + 1 (first counter).
struct CapturedRandom {
  std::optional<at::Generator> generator;  // none: the device's default one
  int generator_input = -1;                // or the graph's input that is the generator
  uint64_t counters = 0;
  int32_t seed_slot = -1;
};

class Capture {
 public:
  Capture();
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  // This thread's, or null.
  static Capture* Current();

  // Placeholders for the graph's inputs.
  ValueRef AddInput(const TensorType& type, int32_t* slot);
  int32_t AddNumber(const at::Tensor& host_scalar);
  void AddGenerator(const at::Generator& generator, int input) { generators_.emplace_back(generator, input); }

  // What recording asks of it.
  void Record(const CallRef& call, absl::Span<const Operand> operands, absl::Span<ValueRef> results);
  void AddSeed(const std::optional<at::Generator>& generator, uint64_t counters, c10::DeviceIndex device,
               absl::Span<Operand> seed_and_offset);
  // The placeholder of a number that is an input on the CPU; null for any other CPU tensor (a constant).
  Value* NumberOf(const at::Tensor& host_scalar) const;
  // Raises if the CPU tensor is an input: its elements are not those of later calls.
  void CheckConstant(const at::Tensor& host) const;

  // The slot of a value that was recorded, is an input, or else a constant from now on.
  int32_t SlotOf(Value* value);

  std::vector<CapturedCall> calls;
  std::vector<CapturedOperand> operands;
  std::vector<CapturedRandom> randoms;
  std::vector<ValueRef> constants;  // by slot; null for what differs from call to call

 private:
  int32_t NewSlot(ValueRef value);
  ValueRef NewPlaceholder(const TensorType& type);

  absl::flat_hash_map<const Value*, int32_t> slots_;
  std::vector<ValueRef> values_;  // all that have slots, so that addresses stay taken
  std::vector<std::pair<at::Tensor, Value*>> numbers_;
  std::vector<std::pair<at::Generator, int>> generators_;
  std::shared_ptr<const absl::Status> unreadable_;
};

// Records the call: for this thread's Capture if there is one, else in the window of the device's current stream.
void RecordCall(c10::DeviceIndex device, const CallRef& call, absl::Span<const Operand> operands,
                absl::Span<ValueRef> results);

}  // namespace tpu

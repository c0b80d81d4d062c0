#include "runtime/host/executable.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "runtime/ending.h"
#include "runtime/host/arena.h"
#include "runtime/host/conv.h"
#include "runtime/host/copy.h"
#include "runtime/host/failures.h"
#include "runtime/host/gemm.h"
#include "runtime/host/kernel_cache.h"
#include "runtime/host/parallel.h"
#include "runtime/host/tile_cut.h"

namespace tpu::host {
namespace {

class PlanExecutable final : public Executable {
 public:
  PlanExecutable(Device* device, Plan plan) : device_(device), plan_(std::move(plan)) {}

  absl::Status Load(CodeLoader* loader);
  absl::Status Launch(absl::Span<Argument> inputs, absl::Span<BufferRef> outputs, const NodeRunner& run_node,
                      const Explainer& explain) override;
  int calls_per_launch() const override { return calls_; }
  std::vector<KernelTime> kernel_times() const override;

 private:
  // What one launch has: where every slot is, and what keeps it there.
  struct Frame {
    absl::Span<Argument> inputs;
    absl::Span<BufferRef> outputs;
    absl::InlinedVector<void*, 48> slots;
    absl::InlinedVector<BufferRef, 4> calls;
    absl::InlinedVector<uint32_t, 4> overwriting;  // outputs that are written over their inputs
    BufferRef arena;
    std::unique_ptr<Failures> failures;  // none so far
  };
  using Pointers = absl::InlinedVector<void*, 24>;
  struct Part : Plan::Stage {
    mutable std::atomic<int64_t> nanoseconds{0};
  };

  int64_t BytesOf(const Part& part) const;
  absl::Status CheckInputs(absl::Span<const Argument> inputs, size_t outputs) const;
  void Run(Frame& frame, const NodeRunner& run_node) const;
  absl::Status Allocate(Frame& frame) const;
  void Resolve(Frame& frame) const;
  void RunPart(const Part& part, Frame& frame, const NodeRunner& run_node) const;
  absl::Status RunStep(const Step& step, Frame& frame, const NodeRunner& run_node) const;
  int64_t TasksOf(const TileLoop& loop) const;  // tiles, or groups of them
  void RunTiles(const TileLoop& loop, absl::Span<const size_t> steps, Frame& frame) const;
  absl::Status RunCall(const Step& step, Frame& frame, const NodeRunner& run_node) const;
  absl::StatusOr<BufferRef> BufferOf(uint32_t slot, const Frame& frame) const;
  absl::StatusOr<BufferRef> Detached(BufferRef result, uint64_t bytes, const Frame& frame) const;
  Pointers PointersOf(const Step& step, const Frame& frame, int64_t* error) const;
  Failures& FailuresOf(Frame& frame) const;
  // Where a part of the arena for tiles begins; of the number of parts: where the arena ends.
  uint64_t TileArena(int64_t part) const {
    const auto align = [](uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
    return align(plan_.arena_bytes) + align(plan_.thread_bytes) * static_cast<uint64_t>(part);
  }

  Device* const device_;
  Plan plan_;
  int calls_ = 0;
  bool brief_ = false;         // its launches are too short to be timed
  int64_t tiles_at_once_ = 0;  // that are in work, at most
  std::deque<Part> parts_;
  mutable std::atomic<int64_t> launches_{0}, timed_{0};
  std::vector<uint64_t> input_bytes_;  // least size of each input
  std::vector<bool> provided_;         // outputs that a call makes
  BufferRef constants_;
  std::vector<std::shared_ptr<LoadedKernel>> kernels_;
  std::vector<KernelFunction> functions_;
};

bool IsBrief(const Plan& plan) {
  constexpr size_t kMostSteps = 16;
  constexpr uint64_t kMostBytes = 32 << 10;
  if (plan.steps.size() > kMostSteps || !plan.tile_loops.empty()) return false;
  uint64_t bytes = 0;
  for (const Slot& slot : plan.slots) bytes += slot.bytes;
  return bytes <= kMostBytes && std::all_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
           return step.kind == Step::Kind::kKernel && step.kernel.extent() <= step.kernel.grain;
         });
}

// error: KernelErrors.
absl::Status Complaint(int64_t error, absl::string_view step) {
  if (error == 0) return absl::OkStatus();
  if (error & static_cast<int64_t>(KernelError::kIndex)) {
    return absl::OutOfRangeError(absl::StrCat("index out of range in ", step));
  }
  const bool divisor = error & static_cast<int64_t>(KernelError::kDivisor);
  // The first is PyTorch's word.
  return absl::InternalError(
      absl::StrCat(divisor ? "ZeroDivisionError" : "an operand is out of its range", " in ", step));
}

// Of so many launches one is timed part by part; the first of them when libraries and caches are warm.
constexpr int64_t kTimedOf = 16, kFirstTimed = 7;

int64_t Now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

int64_t PlanExecutable::BytesOf(const Part& part) const {
  absl::flat_hash_set<uint32_t> slots;
  for (size_t i = part.first; i < part.first + part.count; ++i) {
    slots.insert(plan_.steps[i].slots.begin(), plan_.steps[i].slots.end());
  }
  uint64_t bytes = 0;
  for (const uint32_t slot : slots) {
    if (plan_.slots[slot].kind != Slot::Kind::kTile) bytes += plan_.slots[slot].bytes;
  }
  return static_cast<int64_t>(bytes);
}

std::vector<KernelTime> PlanExecutable::kernel_times() const {
  std::vector<KernelTime> times;
  const int64_t timed = timed_.load(std::memory_order_acquire);
  if (timed == 0) return times;
  for (const Part& part : parts_) {
    std::string label = plan_.LabelOf(part);
    auto known = std::find_if(times.begin(), times.end(), [&](const KernelTime& t) { return t.label == label; });
    if (known == times.end()) known = times.insert(times.end(), KernelTime{std::move(label), timed});
    known->nanoseconds += part.nanoseconds.load(std::memory_order_relaxed);
    known->bytes += BytesOf(part);
  }
  return times;
}

absl::Status PlanExecutable::Load(CodeLoader* loader) {
  brief_ = IsBrief(plan_);
  for (const Plan::Stage& stage : plan_.Stages()) parts_.emplace_back(stage);
  for (const TileLoop& loop : plan_.tile_loops) {
    tiles_at_once_ = std::max(tiles_at_once_, std::min<int64_t>(TasksOf(loop), NumThreads()));
  }
  input_bytes_.assign(plan_.num_inputs, 0);
  provided_.assign(plan_.outputs.size(), false);
  for (const Slot& slot : plan_.slots) {
    if (slot.kind == Slot::Kind::kInput) input_bytes_[slot.index] = std::max(input_bytes_[slot.index], slot.bytes);
  }
  for (const Step& step : plan_.steps) {
    if (step.kind != Step::Kind::kCall) continue;
    ++calls_;
    for (size_t i = step.num_inputs; i < step.slots.size(); ++i) {
      const Slot& slot = plan_.slots[step.slots[i]];
      if (slot.kind == Slot::Kind::kOutput) provided_[slot.index] = true;
    }
  }
  if (!plan_.constants.empty()) {
    absl::StatusOr<BufferRef> constants = device_->Allocate(plan_.constants.size());
    if (!constants.ok()) return constants.status();
    std::memcpy((*constants)->data(), plan_.constants.data(), plan_.constants.size());
    constants_ = *std::move(constants);
    std::string().swap(plan_.constants);
  }
  for (KernelCode& code : plan_.kernels) {
    absl::StatusOr<std::shared_ptr<LoadedKernel>> kernel = LoadKernel(code, loader);
    if (!kernel.ok()) return kernel.status();
    functions_.push_back((*kernel)->function());
    kernels_.push_back(*std::move(kernel));
    std::string().swap(code.object);
  }
  return absl::OkStatus();
}

absl::Status PlanExecutable::Launch(absl::Span<Argument> inputs, absl::Span<BufferRef> outputs,
                                    const NodeRunner& run_node, const Explainer&) {
  if (absl::Status status = CheckInputs(inputs, outputs.size()); !status.ok()) return status;
  Frame frame;
  frame.inputs = inputs;
  frame.outputs = outputs;
  if (absl::Status status = Allocate(frame); !status.ok()) {
    // A donated input that was to be written over is the caller's alone again: the launch can be repeated.
    std::fill(outputs.begin(), outputs.end(), nullptr);
    return status;
  }
  Run(frame, run_node);
  if (!frame.failures) return absl::OkStatus();
  for (const uint32_t output : frame.overwriting) {
    if (frame.failures->Written(output)) inputs[plan_.outputs[output].may_overwrite].buffer = nullptr;
  }
  return frame.failures->first();
}

void PlanExecutable::Run(Frame& frame, const NodeRunner& run_node) const {
  Resolve(frame);
  const bool timed = !brief_ && launches_.fetch_add(1, std::memory_order_relaxed) % kTimedOf == kFirstTimed;
  int64_t before = timed ? Now() : 0;
  for (const Part& part : parts_) {
    RunPart(part, frame, run_node);
    if (!timed) continue;
    const int64_t now = Now();
    part.nanoseconds.fetch_add(now - std::exchange(before, now), std::memory_order_relaxed);
  }
  if (timed) timed_.fetch_add(1, std::memory_order_release);
  for (size_t i = 0; i < frame.outputs.size(); ++i) {
    const OutputSpec& spec = plan_.outputs[i];
    if (spec.kind == OutputSpec::Kind::kOutput) frame.outputs[i] = frame.outputs[spec.source];
    if (spec.kind == OutputSpec::Kind::kCall) frame.outputs[i] = frame.calls[spec.source];
    if (frame.failures && frame.failures->Lost(i)) frame.outputs[i] = nullptr;
  }
}

Failures& PlanExecutable::FailuresOf(Frame& frame) const {
  if (!frame.failures) frame.failures = std::make_unique<Failures>(plan_);
  return *frame.failures;
}

// Goes on past what failed: only what depends on that is left out.
void PlanExecutable::RunPart(const Part& part, Frame& frame, const NodeRunner& run_node) const {
  if (const absl::Status status = CheckNotEnding(); !status.ok()) {
    for (size_t i = part.first; i < part.first + part.count; ++i) FailuresOf(frame).LeaveOut(i, status);
    return;
  }
  if (part.loop == nullptr) {
    if (frame.failures && frame.failures->LeaveOutIfLost(part.first)) return;
    absl::Status status = RunStep(plan_.steps[part.first], frame, run_node);
    if (!status.ok()) FailuresOf(frame).Fail(part.first, status);
    return;
  }
  absl::InlinedVector<size_t, 8> steps;
  for (size_t i = part.first; i < part.first + part.count; ++i) {
    if (!frame.failures || !frame.failures->LeaveOutIfLost(i)) steps.push_back(i);
  }
  RunTiles(*part.loop, steps, frame);
}

absl::Status PlanExecutable::CheckInputs(absl::Span<const Argument> inputs, size_t outputs) const {
  if (inputs.size() != plan_.num_inputs || outputs != plan_.outputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a launch with ", inputs.size(), " inputs and ", outputs,
                                                   " outputs of a program with ", plan_.num_inputs, " and ",
                                                   plan_.outputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const size_t bytes = inputs[i].buffer ? inputs[i].buffer->bytes() : sizeof(inputs[i].scalar_bits);
    if (bytes < input_bytes_[i]) {
      return absl::InvalidArgumentError(
          absl::StrCat("launch: input ", i, " has ", bytes, " bytes, the program reads ", input_bytes_[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status PlanExecutable::Allocate(Frame& frame) const {
  frame.calls.resize(plan_.num_call_buffers);
  for (size_t i = 0; i < frame.outputs.size(); ++i) {
    const OutputSpec& spec = plan_.outputs[i];
    if (spec.kind == OutputSpec::Kind::kInput) {
      const Argument& input = frame.inputs[spec.source];
      if (!input.buffer) return absl::InvalidArgumentError("launch: an output is an input, which is a scalar");
      frame.outputs[i] = input.buffer;
      continue;
    }
    if (spec.kind != OutputSpec::Kind::kFresh || provided_[i]) continue;
    if (spec.may_overwrite >= 0) {
      const Argument& input = frame.inputs[spec.may_overwrite];
      if (input.donated && input.buffer && input.buffer->ref_count() == 1 && input.buffer->bytes() == spec.bytes) {
        frame.outputs[i] = input.buffer;
        frame.overwriting.push_back(static_cast<uint32_t>(i));
        continue;
      }
    }
    absl::StatusOr<BufferRef> buffer = device_->Allocate(spec.bytes);
    if (!buffer.ok()) return buffer.status();
    frame.outputs[i] = *std::move(buffer);
  }
  if (const uint64_t bytes = TileArena(tiles_at_once_); bytes > 0) {
    absl::StatusOr<BufferRef> arena = device_->Allocate(bytes);
    if (!arena.ok()) return arena.status();
    frame.arena = *std::move(arena);
  }
  return absl::OkStatus();
}

void PlanExecutable::Resolve(Frame& frame) const {
  frame.slots.resize(plan_.slots.size());
  for (size_t i = 0; i < plan_.slots.size(); ++i) {
    const Slot& slot = plan_.slots[i];
    void* at = nullptr;
    switch (slot.kind) {
      case Slot::Kind::kInput: {
        Argument& input = frame.inputs[slot.index];
        at = input.buffer ? input.buffer->data() : &input.scalar_bits;
        break;
      }
      case Slot::Kind::kOutput:
        if (!provided_[slot.index]) at = static_cast<char*>(frame.outputs[slot.index]->data()) + slot.offset;
        break;
      case Slot::Kind::kTemp:
        at = frame.arena ? static_cast<char*>(frame.arena->data()) + slot.offset : nullptr;
        break;
      case Slot::Kind::kConstant:
        at = constants_ ? static_cast<char*>(constants_->data()) + slot.offset : nullptr;
        break;
      case Slot::Kind::kCall:
      case Slot::Kind::kTile:
        break;  // by the step that makes it, by the tile
    }
    frame.slots[i] = at;
  }
}

PlanExecutable::Pointers PlanExecutable::PointersOf(const Step& step, const Frame& frame, int64_t* error) const {
  Pointers pointers;
  pointers.reserve(step.slots.size() + 2);
  for (uint32_t slot : step.slots) pointers.push_back(frame.slots[slot]);
  pointers.push_back(error);
  pointers.push_back(const_cast<int64_t*>(step.kernel.parameters.data()));
  return pointers;
}

absl::Status PlanExecutable::RunStep(const Step& step, Frame& frame, const NodeRunner& run_node) const {
  switch (step.kind) {
    case Step::Kind::kKernel: {
      int64_t error = 0;
      Pointers pointers = PointersOf(step, frame, &error);
      const KernelFunction function = functions_[step.kernel.kernel];
      ParallelFor(step.kernel.extent(), step.kernel.grain,
                  [&](int64_t begin, int64_t end) { function(pointers.data(), begin, end); });
      return Complaint(error, step.label);
    }
    case Step::Kind::kGemm:
      RunGemm(step.gemm, frame.slots[step.slots[0]], frame.slots[step.slots[1]], frame.slots[step.slots[2]]);
      break;
    case Step::Kind::kCopy:
      if (step.copy.sizes.empty()) {
        CopyBytes(frame.slots[step.slots[1]], frame.slots[step.slots[0]], plan_.slots[step.slots[0]].bytes);
      } else {
        CopyRuns(frame.slots[step.slots[1]], frame.slots[step.slots[0]], step.copy.run, step.copy.sizes,
                 step.copy.strides);
      }
      break;
    case Step::Kind::kConv:
      RunConv(step.conv, frame.slots[step.slots[0]], frame.slots[step.slots[1]],
              static_cast<float*>(frame.slots[step.slots[2]]));
      break;
    case Step::Kind::kCall:
      return RunCall(step, frame, run_node);
  }
  return absl::OkStatus();
}

int64_t PlanExecutable::TasksOf(const TileLoop& loop) const {
  const auto begin = plan_.steps.begin() + loop.first;
  const bool sums = std::any_of(begin, begin + loop.count, [&](const Step& s) { return IsByDepth(loop, s); });
  return loop.groups() * (sums ? 1 : loop.tiles_of_group());
}

void PlanExecutable::RunTiles(const TileLoop& loop, absl::Span<const size_t> steps, Frame& frame) const {
  absl::InlinedVector<int64_t, 8> errors(steps.size(), 0);
  absl::InlinedVector<Pointers, 8> pointers;
  for (size_t i = 0; i < steps.size(); ++i) pointers.push_back(PointersOf(plan_.steps[steps[i]], frame, &errors[i]));
  // Room for each thread, or for each task where these are fewer. Steps count from the value's beginning, so that is
  // where a tile is put.
  const int64_t tasks = TasksOf(loop);
  auto run = [&](size_t i, char* room, int64_t begin, int64_t end) {
    const Step& step = plan_.steps[steps[i]];
    Pointers at = pointers[i];
    for (size_t j = 0; j < step.slots.size(); ++j) {
      const Slot& slot = plan_.slots[step.slots[j]];
      if (slot.kind != Slot::Kind::kTile) continue;
      const uint64_t before = slot.bytes / static_cast<uint64_t>(loop.parts) * static_cast<uint64_t>(begin);
      at[j] = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(room) + slot.offset - before);
    }
    const int64_t extent = ExtentIn(loop, step) / loop.parts;
    if (step.kind == Step::Kind::kKernel) {
      functions_[step.kernel.kernel](at.data(), begin * extent, end * extent);
    } else if (IsByDepth(loop, step)) {
      RunGemmDepth(step.gemm, at[0], at[1], at[2], begin * extent, end * extent);
    } else {
      RunGemmRows(step.gemm, at[0], at[1], at[2], begin * extent, end * extent);
    }
  };
  char* const arena = frame.arena ? static_cast<char*>(frame.arena->data()) : nullptr;
  const int64_t in_group = loop.tiles_of_group(), together = loop.groups() * in_group / tasks;
  ParallelFor(tasks, 1, [&](int64_t first, int64_t last) {
    for (int64_t tile = first * together; tile < last * together; ++tile) {
      char* const room = arena + TileArena(tasks <= NumThreads() ? tile / together : ThreadNumber());
      const int64_t group = tile / in_group * loop.of_group, begin = tile % in_group * loop.of_tile;
      const int64_t end = std::min(begin + loop.of_tile, loop.of_group);
      for (size_t i = 0; i < steps.size(); ++i) run(i, room, group + begin, group + end);
    }
  });
  for (size_t i = 0; i < steps.size(); ++i) {
    if (frame.failures) frame.failures->Spread(steps[i]);
    if (errors[i] != 0) FailuresOf(frame).Fail(steps[i], Complaint(errors[i], plan_.steps[steps[i]].label));
  }
}

absl::Status PlanExecutable::RunCall(const Step& step, Frame& frame, const NodeRunner& run_node) const {
  if (!run_node) return absl::FailedPreconditionError(absl::StrCat("no host kernel is given for ", step.label));
  const size_t num_inputs = step.num_inputs;
  absl::InlinedVector<Argument, 8> inputs(num_inputs);
  for (size_t i = 0; i < num_inputs; ++i) {
    const Slot& slot = plan_.slots[step.slots[i]];
    if (slot.kind == Slot::Kind::kInput) inputs[i].scalar_bits = frame.inputs[slot.index].scalar_bits;
    absl::StatusOr<BufferRef> buffer = BufferOf(step.slots[i], frame);
    if (!buffer.ok()) return buffer.status();
    inputs[i].buffer = *std::move(buffer);
  }
  absl::InlinedVector<BufferRef, 4> results(step.slots.size() - num_inputs);
  if (absl::Status status = run_node(step.call.node, inputs, absl::MakeSpan(results)); !status.ok()) return status;
  for (size_t i = 0; i < results.size(); ++i) {
    const uint32_t number = step.slots[num_inputs + i];
    const Slot& slot = plan_.slots[number];
    const bool is_output = slot.kind == Slot::Kind::kOutput;
    const uint64_t bytes = is_output ? plan_.outputs[slot.index].bytes : slot.bytes;
    absl::StatusOr<BufferRef> result = Detached(std::move(results[i]), bytes, frame);
    if (!result.ok()) {
      return absl::Status(result.status().code(), absl::StrCat(step.label, ": ", result.status().message()));
    }
    char* const data = static_cast<char*>((*result)->data());
    (is_output ? frame.outputs[slot.index] : frame.calls[slot.index]) = *std::move(result);
    // Every slot of this buffer, whichever one the step named.
    for (size_t s = 0; s < plan_.slots.size(); ++s) {
      const Slot& other = plan_.slots[s];
      if (other.kind == slot.kind && other.index == slot.index) frame.slots[s] = data + (is_output ? other.offset : 0);
    }
  }
  return absl::OkStatus();
}

// A slot as a buffer that a host kernel can read. Parts of the arena and the constants keep the whole alive.
absl::StatusOr<BufferRef> PlanExecutable::BufferOf(uint32_t slot_number, const Frame& frame) const {
  const Slot& slot = plan_.slots[slot_number];
  switch (slot.kind) {
    case Slot::Kind::kInput: {
      const Argument& input = frame.inputs[slot.index];
      if (input.buffer) return input.buffer;
      absl::StatusOr<BufferRef> number = device_->Allocate(slot.bytes);  // for kernels that read it as a tensor
      if (number.ok()) std::memcpy((*number)->data(), &input.scalar_bits, slot.bytes);
      return number;
    }
    case Slot::Kind::kOutput:
      if (const BufferRef& whole = frame.outputs[slot.index]) {
        if (slot.bytes >= plan_.outputs[slot.index].bytes) return whole;
        return MakeRef<Buffer>(frame.slots[slot_number], slot.bytes, [whole] {});
      }
      return absl::InternalError("a call reads an output that no step has made");
    case Slot::Kind::kCall:
      return frame.calls[slot.index];
    case Slot::Kind::kTemp:
      return MakeRef<Buffer>(frame.slots[slot_number], slot.bytes, [whole = frame.arena] {});
    case Slot::Kind::kConstant:
      return MakeRef<Buffer>(frame.slots[slot_number], slot.bytes, [whole = constants_] {});
    case Slot::Kind::kTile:
      break;
  }
  return absl::InternalError("a slot that no call may use");
}

// A kernel may return an operand of its own (contiguous() of what is contiguous). Where that memory is not the
// result's to keep (the arena, the constants, what an output lies in) the result is copied out.
absl::StatusOr<BufferRef> PlanExecutable::Detached(BufferRef result, uint64_t bytes, const Frame& frame) const {
  if (!result || result->bytes() < bytes) {
    return absl::InternalError(absl::StrCat("the host kernel returned ", result ? result->bytes() : 0, " bytes where ",
                                            bytes, " were expected"));
  }
  auto within = [&](const Buffer* whole) {
    const char* at = static_cast<const char*>(result->data());
    const char* begin = static_cast<const char*>(whole->data());
    return at >= begin && at < begin + whole->bytes();
  };
  bool borrowed = (frame.arena && within(frame.arena.get())) || (constants_ && within(constants_.get()));
  for (const BufferRef& output : frame.outputs)
    borrowed |= output && output.get() != result.get() && within(output.get());
  for (const uint32_t output : frame.overwriting) borrowed |= within(frame.outputs[output].get());
  if (!borrowed) return result;
  absl::StatusOr<BufferRef> copy = device_->Allocate(bytes);
  if (copy.ok()) std::memcpy((*copy)->data(), result->data(), bytes);
  return copy;
}

class LoadedFamily final : public ExecutableFamily {
 public:
  LoadedFamily(Device* device, PlanFamily family, CodeLoader* loader)
      : device_(device), loader_(loader), family_(std::move(family)) {}

  absl::Status Load() {
    for (KernelCode& code : family_.plan.kernels) {
      absl::StatusOr<std::shared_ptr<LoadedKernel>> kernel = LoadKernel(code, loader_);
      if (!kernel.ok()) return kernel.status();
      kernels_.push_back(*std::move(kernel));
      std::string().swap(code.object);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Executable>> At(absl::Span<const int64_t> sizes) override {
    absl::StatusOr<Plan> plan = family_.At(sizes);
    if (!plan.ok()) return plan.status();
    return LoadPlan(device_, *std::move(plan), loader_);
  }

 private:
  Device* const device_;
  CodeLoader* const loader_;
  PlanFamily family_;
  std::vector<std::shared_ptr<LoadedKernel>> kernels_;  // found by their keys when a plan of the family is loaded
};

}  // namespace

absl::StatusOr<std::unique_ptr<ExecutableFamily>> LoadPlanFamily(Device* device, PlanFamily family,
                                                                 CodeLoader* loader) {
  auto loaded = std::make_unique<LoadedFamily>(device, std::move(family), loader);
  if (absl::Status status = loaded->Load(); !status.ok()) return status;
  return loaded;
}

absl::StatusOr<std::unique_ptr<Executable>> LoadPlan(Device* device, Plan plan, CodeLoader* loader) {
  auto executable = std::make_unique<PlanExecutable>(device, std::move(plan));
  if (absl::Status status = executable->Load(loader); !status.ok()) return status;
  return executable;
}

}  // namespace tpu::host

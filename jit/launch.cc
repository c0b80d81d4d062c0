#include "jit/launch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "jit/compile_pool.h"
#include "jit/timeline.h"
#include "jit/tuning.h"
#include "runtime/ending.h"

namespace tpu {
namespace {

constexpr size_t kMaxNamed = 20;         // operations in a message
constexpr int64_t kHandOverNs = 50'000;  // to the stream's thread and back
constexpr int64_t kWakeUpNs = 10'000;    // of the stream's thread, for who wakes it
constexpr int64_t kMostAloneNs = 200'000;
constexpr int64_t kLongNs = 1'000'000;  // what is told to the hook

std::shared_ptr<const absl::Status> Shared(const absl::Status& status) {
  return std::make_shared<const absl::Status>(status);
}

absl::Status ExplainNode(const FragmentEntry& entry, int node, const absl::Status& status) {
  std::string message = absl::StrCat(status.message(), "\n  in ", entry.fragment.nodes[node].call->ToString());
  if (!entry.where[node].empty()) absl::StrAppend(&message, "\n  recorded at ", entry.where[node]);
  return absl::Status(status.code(), message);
}

// Which operation it was is not known: a kernel does the work of several. All are named, while they are few.
absl::Status ExplainFragment(const FragmentEntry& entry, const absl::Status& status) {
  const size_t nodes = entry.fragment.nodes.size();
  std::string message = absl::StrCat(status.message(), "\n  in a fragment of ", nodes, " operations");
  for (size_t i = 0; i < std::min(nodes, kMaxNamed); ++i) {
    absl::StrAppend(&message, "\n  ", entry.fragment.nodes[i].call->ToString());
    if (!entry.where[i].empty()) absl::StrAppend(&message, "\n    recorded at ", entry.where[i]);
  }
  if (nodes > kMaxNamed) absl::StrAppend(&message, "\n  ...");
  return absl::Status(status.code(), message);
}

// Whether the nodes may run a second time: what a library's operators do beside their results is done once.
bool MayRunAgain(const Fragment& fragment, const std::vector<bool>& nodes) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    const absl::string_view op = fragment.nodes[i].call->op;
    if (nodes[i] && !absl::StartsWith(op, "aten::") && !absl::StartsWith(op, "tpu::")) return false;
  }
  return true;
}

void Note(TierProfile& profile, int64_t took) {
  constexpr int64_t kWeight = 8, kMostTimes = 2;
  profile.runs.fetch_add(1, std::memory_order_relaxed);
  profile.nanoseconds.fetch_add(took, std::memory_order_relaxed);
  std::atomic<int64_t>& lately = profile.lately[Stream::RunningClaimed()];
  const int64_t before = lately.load(std::memory_order_relaxed);
  // What held up one launch, a first one above all, says little.
  const int64_t now =
      before == 0 || took < before ? took : before + (std::min(took, kMostTimes * before) - before) / kWeight;
  lately.store(std::max<int64_t>(now, 1), std::memory_order_relaxed);
}

// Whether a launch that takes less than `most` on the stream's thread is known to take less than `saved` more on one
// that claims the stream, or had better be tried there.
bool GainsHere(const TierProfile& profile, int64_t most, int64_t saved) {
  constexpr int64_t kRetry = 128, kTries = 4;  // one alone says little: its caches are cold
  const int64_t there = profile.lately[0].load(std::memory_order_relaxed);
  if (there == 0 || there >= most) return false;
  const int64_t here = profile.lately[1].load(std::memory_order_relaxed);
  return here < there + saved || profile.runs.load(std::memory_order_relaxed) % kRetry < kTries;
}

}  // namespace

bool Launch::HasItsInputs() const {
  for (const Input& in : inputs) {
    if (in.value && (!in.value->done() || in.value->error())) return false;  // beside a failed one, nodes run singly
  }
  return true;
}

bool Launch::IsBrief() const {
  const Executable* executable = entry_->executables[stream_.device_index()].load(std::memory_order_acquire);
  return executable != nullptr && executable->calls_per_launch() == 0 &&
         GainsHere(entry_->profile[1], kWakeUpNs, kWakeUpNs) && HasItsInputs();
}

bool Launch::RunsForItsReader() const {
  if (!HasItsInputs()) return false;
  const Executable* executable = entry_->executables[stream_.device_index()].load(std::memory_order_acquire);
  if (executable != nullptr && executable->calls_per_launch() == 0) return true;
  // Host kernels have a team of threads on the stream's thread and none on a reader's, unless the engine is fixed:
  // there a reader gets only what is sure to be brief.
  return GainsHere(entry_->profile[executable != nullptr], fixed ? kHandOverNs : kMostAloneNs, kHandOverNs);
}

void Launch::Run() {
  std::vector<Argument> arguments(inputs.size());
  const bool sound = CollectArguments(arguments);
  const int device = stream_.device_index();
  const std::atomic<Executable*>& own = entry_->executables[device];
  // Its family's program, which may serve it already, may round otherwise.
  if (fixed && entry_->state.load(std::memory_order_acquire) != FragmentEntry::State::kReady) {
    engine_.pool().WaitFor(entry_);
  }
  Executable* executable = fixed ? own.load(std::memory_order_acquire) : entry_->ExecutableFor(device);
  if (executable == nullptr && !fixed && !stream_.device()->host_addressable() && Engine::IsServed(*entry_)) {
    engine_.pool().WaitFor(*entry_->family);  // sooner there than programs for each operation
    executable = entry_->ExecutableFor(device);
  }
  Metrics& metrics = Metrics::Get();
  const bool compiled = executable != nullptr && sound && CheckNotEnding().ok();
  Tuner::Turn turn;
  // What runs by its family's program, or is timed with others of a cluster, is not measured by itself.
  bool measurable =
      compiled && !fixed && !passage && entry_->state.load(std::memory_order_acquire) == FragmentEntry::State::kReady;
  if (measurable) turn = engine_.tuner().Begin(*entry_, device);
  const bool traced = Timeline::Get().recording();
  const int64_t begin = traced ? Timeline::Now() : 0;
  const auto start = std::chrono::steady_clock::now();
  if (compiled) {
    metrics.launches_tier1.fetch_add(1, std::memory_order_relaxed);
    std::vector<BufferRef> buffers(outputs.size());
    absl::Status status = RunProgram(turn.executable != nullptr ? *turn.executable : *executable, arguments, buffers);
    measurable &= status.ok();
    if (turn.executable != nullptr && absl::IsResourceExhausted(status) && executable->calls_per_launch() == 0) {
      engine_.tuner().Reject(*entry_, turn);  // nothing has run yet
      status = RunProgram(*executable, arguments, buffers);
    }
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i]->buffer_ = std::move(buffers[i]);
    if (!status.ok()) {
      passage = nullptr;  // says nothing of the program's time
      Mend(status, arguments);
    }
  } else {
    metrics.launches_tier0.fetch_add(1, std::memory_order_relaxed);
    RunNodeByNode(entry_->live, std::vector<NodeResult>(entry_->fragment.num_results), arguments);
  }
  const int64_t took = (std::chrono::steady_clock::now() - start) / std::chrono::nanoseconds(1);
  Note(entry_->profile[compiled], took);
  if (passage && compiled) passage->Add(took);
  engine_.tuner().End(*entry_, turn, measurable, took);
  if (took >= kLongNs && !Stream::RunningClaimed()) engine_.NoteLongLaunch();
  if (traced) {
    Timeline::Get().Add(Span::Kind::kFragment, stream_, begin, entry_->fragment.Summary(),
                        {{"operations", std::to_string(entry_->live_ops)},
                         {"tier", compiled ? "compiled" : "op by op"},
                         {"first line", entry_->FirstLine()}});
  }
  arguments.clear();
  inputs.clear();
  outputs.clear();
}

// Waits for other streams' results; false when an input has failed.
bool Launch::CollectArguments(std::vector<Argument>& arguments) {
  bool sound = true;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Input& in = inputs[i];
    arguments[i].scalar_bits = in.bits;
    if (in.value && in.value->Hand(stream_, arguments[i])) sound = false;
  }
  return sound;
}

absl::Status Launch::RunProgram(Executable& executable, std::vector<Argument>& arguments,
                                std::vector<BufferRef>& buffers) {
  const NodeRunner runner = [this](int node, absl::Span<const Argument> in, absl::Span<BufferRef> out) {
    Metrics::Get().CountHostKernel(entry_->fragment.nodes[node].call->op, entry_->where[node]);
    const std::vector<KernelInput> inputs(in.begin(), in.end());
    return RunNode(node, inputs, out);
  };
  const auto explain = [entry = entry_](const absl::Status& error) { return ExplainFragment(*entry, error); };
  absl::Status status = executable.Launch(absl::MakeSpan(arguments), absl::MakeSpan(buffers), runner, explain);
  return status.ok() ? status : explain(status);
}

// After an error of the program, which left some outputs without a value.
void Launch::Mend(const absl::Status& status, std::vector<Argument>& arguments) {
  std::vector<ValueRef> left;
  std::copy_if(outputs.begin(), outputs.end(), std::back_inserter(left), [](const ValueRef& v) { return !v->buffer_; });
  lost_ = Shared(status);
  const Fragment& f = entry_->fragment;
  std::vector<NodeResult> results(f.num_results);
  for (size_t i = 0; i < outputs.size(); ++i) results[f.outputs[i]].buffer = outputs[i]->buffer_;
  const std::vector<bool> nodes = NodesLeft(results);
  // Nodes give up what they have read, where a program holds all of it: they may need less memory.
  const bool memory = absl::IsResourceExhausted(status);
  const bool again = MayRunAgain(f, nodes) && (!memory || stream_.device()->host_addressable());
  if (again && (!RunNodeByNode(nodes, std::move(results), arguments) || memory)) return;  // what failed says why
  for (const ValueRef& v : left) {
    v->buffer_ = nullptr;
    v->error_ = lost_;
  }
}

// Those that outputs need for which there is no result.
std::vector<bool> Launch::NodesLeft(const std::vector<NodeResult>& results) const {
  const Fragment& f = entry_->fragment;
  std::vector<bool> needed(f.num_results, false), left(f.nodes.size(), false);
  for (ValueId v : f.outputs) needed[v] = !results[v].buffer;
  for (size_t i = f.nodes.size(); i-- > 0;) {
    const Node& node = f.nodes[i];
    for (size_t r = 0; r < node.call->results.size(); ++r) left[i] = left[i] || needed[node.results_begin + r];
    if (!left[i]) continue;
    for (ValueId v : f.OperandsOf(node)) {
      if (!IsInput(v) && !results[v].buffer) needed[v] = true;
    }
  }
  return left;
}

bool Launch::RunNodeByNode(const std::vector<bool>& nodes, std::vector<NodeResult> results,
                           std::vector<Argument>& arguments) {
  bool sound = true;
  const Fragment& f = entry_->fragment;
  const int n = static_cast<int>(f.nodes.size());
  std::vector<KernelInput> in;
  std::vector<BufferRef> out;
  for (int i = 0; i < n; ++i) {
    if (!nodes[i]) continue;
    const Node& node = f.nodes[i];
    in.clear();
    std::shared_ptr<const absl::Status> error = TakeOperands(i, arguments, results, in);
    NodeResult* const first = &results[node.results_begin];
    if (!error && node.call->is_view && !node.call->needs_program && in[0].window == nullptr &&
        entry_->last_use[node.results_begin] < n) {
      *first = {std::move(in[0].argument.buffer), node.call.get(), nullptr};  // its readers take the window themselves
      continue;
    }
    out.assign(node.call->results.size(), nullptr);
    if (!error) {
      Metrics::Get().CountTier0Kernel(node.call, engine_.backend(), entry_->where[i]);
      absl::Status status = RunNode(i, in, absl::MakeSpan(out));
      if (!status.ok()) error = Shared(ExplainNode(*entry_, i, status));
    }
    sound &= error == nullptr;
    for (size_t r = 0; r < out.size(); ++r) {
      if (!first[r].buffer) first[r] = {error ? BufferRef() : std::move(out[r]), nullptr, error};
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i]->buffer_) continue;
    outputs[i]->buffer_ = std::move(results[f.outputs[i]].buffer);
    outputs[i]->error_ = std::move(results[f.outputs[i]].error);
  }
  return sound;
}

// The operands of node `i`; those it is the last to read are given up, and donated where nobody else holds them.
// Returns the error of one that failed.
std::shared_ptr<const absl::Status> Launch::TakeOperands(int i, std::vector<Argument>& arguments,
                                                         std::vector<NodeResult>& results,
                                                         std::vector<KernelInput>& in) {
  const Fragment& f = entry_->fragment;
  const absl::Span<const ValueId> operands = f.OperandsOf(f.nodes[i]);
  std::shared_ptr<const absl::Status> error;
  for (ValueId v : operands) {
    if (IsInput(v)) {
      const Input& input = inputs[InputIndex(v)];
      if (input.value && input.value->error_) error = input.value->error_;
      if (lost_ && input.value && !arguments[InputIndex(v)].buffer) error = lost_;
      in.push_back({{arguments[InputIndex(v)].buffer, arguments[InputIndex(v)].scalar_bits, false}, nullptr});
    } else {
      if (results[v].error) error = results[v].error;
      in.push_back({{results[v].buffer, 0, false}, results[v].window});
    }
  }
  for (ValueId v : operands) {
    if (IsInput(v) && entry_->input_last_use[InputIndex(v)] == i) arguments[InputIndex(v)].buffer = nullptr;
    if (!IsInput(v) && entry_->last_use[v] == i) results[v].buffer = nullptr;
  }
  if (f.nodes[i].call->alone) {  // reads its operands on the host: their errors are theirs
    for (const KernelInput& k : in) {
      if (error || !k.argument.buffer) continue;
      if (absl::Status s = stream_.device()->Wait(k.argument.buffer); !s.ok()) error = Shared(s);
    }
  }
  for (KernelInput& k : in) {
    k.argument.donated = k.argument.buffer && k.window == nullptr && k.argument.buffer->ref_count() == 1;
  }
  return error;
}

absl::Status Launch::RunNode(int node, absl::Span<const KernelInput> in, absl::Span<BufferRef> out) {
  const Call& call = *entry_->fragment.nodes[node].call;
  if (absl::Status status = CheckNotEnding(); !status.ok()) return status;
  if (call.needs_program) {  // its views are programs too: no operand is a window
    const absl::StatusOr<std::shared_ptr<Executable>> program =
        engine_.pool().SingleOperation(entry_->fragment.nodes[node].call, *stream_.device());
    if (!program.ok()) return program.status();
    std::vector<Argument> arguments;
    for (const KernelInput& k : in) arguments.push_back(k.argument);
    return (*program)->Launch(absl::MakeSpan(arguments), out, nullptr,
                              [entry = entry_, node, running = *program](const absl::Status& error) {
                                return ExplainNode(*entry, node, error);
                              });
  }
  if (!engine_.call_runner()) {
    return absl::UnimplementedError(absl::StrCat(call.op, " has no host kernel in this process"));
  }
  if (call.alone) Metrics::Get().CountHostKernel(call.op, entry_->where[node]);
  return engine_.call_runner()(*stream_.device(), call, in, out);
}

}  // namespace tpu

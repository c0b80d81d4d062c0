#include "jit/launch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "jit/compile_pool.h"

namespace tpu {
namespace {

std::shared_ptr<const absl::Status> Shared(const absl::Status& status) {
  return std::make_shared<const absl::Status>(status);
}

}  // namespace

void Launch::Queue(uint64_t sequence) {
  for (ValueRef& v : outputs) v->sequence_ = sequence;
}

void Launch::Run() {
  entry_.runs.fetch_add(1, std::memory_order_relaxed);
  std::vector<Argument> arguments(inputs.size());
  const bool sound = CollectArguments(arguments);
  Executable* executable = entry_.executables[stream_.device()->index()].load(std::memory_order_acquire);
  Metrics& metrics = Metrics::Get();
  if (executable != nullptr && sound) {
    metrics.launches_tier1.fetch_add(1, std::memory_order_relaxed);
    std::vector<BufferRef> buffers(outputs.size());
    const absl::Status status = RunProgram(*executable, arguments, buffers);
    if (status.ok()) {
      for (size_t i = 0; i < outputs.size(); ++i) outputs[i]->buffer_ = std::move(buffers[i]);
    } else {
      Fail(status);
    }
  } else {
    metrics.launches_tier0.fetch_add(1, std::memory_order_relaxed);
    RunNodeByNode(arguments);
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
    if (!in.value) continue;
    Value& value = *in.value;
    if (value.stream_ != nullptr && value.stream_ != &stream_) value.stream_->WaitFor(value.sequence_);
    if (value.error_) {
      sound = false;
      continue;
    }
    // Only this launch still knows the value: its buffer can be given up.
    arguments[i].donated = value.ref_count() == 1;
    if (arguments[i].donated) {
      arguments[i].buffer = std::move(value.buffer_);
    } else {
      arguments[i].buffer = value.buffer_;
    }
  }
  return sound;
}

absl::Status Launch::RunProgram(Executable& executable, std::vector<Argument>& arguments,
                                std::vector<BufferRef>& buffers) {
  const NodeRunner runner = [this](int node, absl::Span<const Argument> in, absl::Span<BufferRef> out) {
    Metrics::Get().CountHostKernel(entry_.fragment.nodes[node].call->op);
    return RunNode(node, in, out);
  };
  absl::Status status = executable.Launch(absl::MakeSpan(arguments), absl::MakeSpan(buffers), runner);
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(
          status.message(), "\n  in a fragment of ", entry_.fragment.nodes.size(), " operations",
          entry_.where.empty() || entry_.where[0].empty() ? "" : absl::StrCat(" recorded from ", entry_.where[0])));
}

void Launch::RunNodeByNode(std::vector<Argument>& arguments) {
  const Fragment& f = entry_.fragment;
  std::vector<BufferRef> buffers(f.num_results);
  std::vector<std::shared_ptr<const absl::Status>> errors(f.num_results);
  std::vector<Argument> in;
  std::vector<BufferRef> out;
  for (size_t i = 0; i < f.nodes.size(); ++i) {
    if (!entry_.live[i]) continue;
    const Node& node = f.nodes[i];
    in.clear();
    std::shared_ptr<const absl::Status> error;
    for (ValueId v : f.OperandsOf(node)) {
      if (IsInput(v)) {
        const Input& input = inputs[InputIndex(v)];
        if (input.value && input.value->error_) error = input.value->error_;
        in.push_back({arguments[InputIndex(v)].buffer, arguments[InputIndex(v)].scalar_bits, false});
      } else {
        if (errors[v]) error = errors[v];
        in.push_back({buffers[v], 0, false});
      }
    }
    const size_t results = node.call->results.size();
    out.assign(results, nullptr);
    if (!error) {
      Metrics::Get().tier0_kernel_calls.fetch_add(1, std::memory_order_relaxed);
      absl::Status status = RunNode(static_cast<int>(i), in, absl::MakeSpan(out));
      if (!status.ok()) error = Shared(Explain(static_cast<int>(i), status));
    }
    for (size_t r = 0; r < results; ++r) {
      buffers[node.results_begin + r] = std::move(out[r]);
      errors[node.results_begin + r] = error;
    }
    for (ValueId v : f.OperandsOf(node)) {
      if (!IsInput(v) && entry_.last_use[v] == static_cast<int32_t>(i)) buffers[v] = nullptr;
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i]->buffer_ = std::move(buffers[f.outputs[i]]);
    outputs[i]->error_ = std::move(errors[f.outputs[i]]);
  }
}

absl::Status Launch::RunNode(int node, absl::Span<const Argument> in, absl::Span<BufferRef> out) {
  const Call& call = *entry_.fragment.nodes[node].call;
  if (call.needs_program) {
    absl::StatusOr<Executable*> program = engine_.pool().SingleOperation(call, *stream_.device());
    if (!program.ok()) return program.status();
    std::vector<Argument> arguments(in.begin(), in.end());
    return (*program)->Launch(absl::MakeSpan(arguments), out, nullptr);
  }
  if (!engine_.call_runner()) {
    return absl::UnimplementedError(absl::StrCat(call.op, " has no host kernel in this process"));
  }
  return engine_.call_runner()(*stream_.device(), call, in, out);
}

absl::Status Launch::Explain(int node, const absl::Status& status) const {
  std::string message = absl::StrCat(status.message(), "\n  in ", entry_.fragment.nodes[node].call->ToString());
  if (!entry_.where[node].empty()) absl::StrAppend(&message, "\n  recorded at ", entry_.where[node]);
  return absl::Status(status.code(), message);
}

void Launch::Fail(const absl::Status& status) {
  const auto shared = Shared(status);
  for (ValueRef& v : outputs) v->error_ = shared;
}

}  // namespace tpu

// One run of a fragment on a stream: the task that a cut enqueues.
//
// Made under the recording lock, run once: on the stream's thread, or on one that has claimed the stream.
// Picks the tier there: the program if it is ready, else node by node. What a program that fails of what it read leaves
// out (on the embedded device, which knows at once) is done again node by node, so that only what depends on the node
// that failed does, and its error names that; what reads an input that the program wrote over gets the program's first.
// So is what the device has no memory for as one program.
// Holds its inputs until it has run; gives up those that nobody else holds, so that outputs can be written over them.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "jit/cluster.h"
#include "jit/engine.h"
#include "jit/fragment_table.h"
#include "jit/value.h"

namespace tpu {

class Launch {
 public:
  struct Input {
    ValueRef value;
    uint64_t bits = 0;
  };

  Launch(Engine& engine, Stream& stream, FragmentRef entry)
      : engine_(engine), stream_(stream), entry_(std::move(entry)) {}

  // In the fragment's order.
  std::vector<Input> inputs;
  std::vector<ValueRef> outputs;
  std::shared_ptr<Passage> passage;  // that it is timed for, if any
  // Engine::fixed() when it was cut.
  bool fixed = false;

  void Run();
  // Whether a thread that is about to wait for it had better run it: its inputs are there, and what it asks of host
  // kernels, if anything, takes less than handing it to the stream's thread.
  bool RunsForItsReader() const;
  // Whether any thread had better run it than wake the stream's: its program's inputs are there, and it is brief.
  bool IsBrief() const;

 private:
  // What a node gave at tier 0: a buffer, or with `window` (a "tpu::view") that window of it.
  struct NodeResult {
    BufferRef buffer;
    const Call* window = nullptr;
    std::shared_ptr<const absl::Status> error;
  };

  bool HasItsInputs() const;
  bool CollectArguments(std::vector<Argument>& arguments);
  absl::Status RunProgram(Executable& executable, std::vector<Argument>& arguments, std::vector<BufferRef>& buffers);
  void Mend(const absl::Status& status, std::vector<Argument>& arguments);
  // These nodes, for the outputs that have no value yet. Whether none of them failed.
  bool RunNodeByNode(const std::vector<bool>& nodes, std::vector<NodeResult> results, std::vector<Argument>& arguments);
  std::vector<bool> NodesLeft(const std::vector<NodeResult>& results) const;
  std::shared_ptr<const absl::Status> TakeOperands(int node, std::vector<Argument>& arguments,
                                                   std::vector<NodeResult>& results, std::vector<KernelInput>& in);
  absl::Status RunNode(int node, absl::Span<const KernelInput> inputs, absl::Span<BufferRef> outputs);

  Engine& engine_;
  Stream& stream_;
  const FragmentRef entry_;
  std::shared_ptr<const absl::Status> lost_;  // the error of what reads an input that a failed program wrote over
};

}  // namespace tpu

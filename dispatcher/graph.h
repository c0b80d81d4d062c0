// One capture of a compiled graph, for one kind of inputs: calls to record again, from the values of the inputs to the
// tensors that are the outputs. A replay is recorded into the current stream's window as eager operations are, so that
// fragments, cuts, cache and tiers are theirs, without PyTorch's dispatcher and without Python.
//
// Made by GraphCapture around one run of the graph's Python; owned by the binding's CompiledGraph (bindings/graphs.cc),
// which finds it by the inputs' words. Immutable once made: any thread may replay.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "dispatcher/capture.h"
#include "dispatcher/layout.h"

namespace tpu {

struct GraphInput {
  enum class Kind : uint8_t { kConstant, kTensor, kHostNumber, kGenerator };
  Kind kind = Kind::kConstant;   // what its words say is all there is to it
  at::Tensor tensor;             // kTensor: on tpu; kHostNumber: 0-dim, on the CPU
  const Layout* base = nullptr;  // kTensor: as what its part of the storage is taken in
  at::Generator generator;
};

// Says what a tensor or generator is as an input, and appends the words that a capture depends on. False: graphs with
// such an input can't be captured.
bool Describe(const at::Tensor& tensor, GraphInput& input, std::vector<uint64_t>& words);
bool Describe(const at::Generator& generator, GraphInput& input, std::vector<uint64_t>& words);

class CapturedGraph {
 public:
  struct Output {
    int input = -1;   // that input itself; else a new tensor
    int storage = 0;  // ... over this new storage, or over input ~storage's
    const Layout* layout = nullptr;
    int64_t offset = 0;
  };
  const std::vector<Output>& outputs() const { return outputs_; }

  // Records the graph on the given inputs, which it gives up as soon as it can, and writes those that the graph writes.
  // Returns the outputs; undefined for those that are inputs.
  std::vector<at::Tensor> Replay(std::vector<GraphInput>& inputs) const;

 private:
  friend class GraphCapture;
  struct NewStorage {
    int32_t slot = -1;  // none: uninitialised
    const Layout* layout = nullptr;
    size_t bytes = 0;
  };
  std::vector<CapturedCalls::Slot> Fill(std::vector<GraphInput>& inputs) const;

  c10::DeviceIndex device_ = 0;
  std::vector<int32_t> input_slots_;  // by input; -1: no value, or none that is used
  std::vector<bool> kept_;            // by input: written, or outputs alias it
  CapturedCalls calls_;
  std::vector<int> writes_;             // inputs, as their values come about
  std::vector<int32_t> written_slots_;  // their values
  std::vector<NewStorage> storages_;
  std::vector<Output> outputs_;
};

class GraphCapture {
 public:
  // For a graph whose tensors are all on `device`.
  GraphCapture(absl::Span<const GraphInput> inputs, c10::DeviceIndex device);

  // By input: what the graph is to be run on; undefined where it is no tensor of tpu.
  const std::vector<at::Tensor>& placeholders() const { return placeholders_; }
  // `outputs`: what the run returned; undefined for those that are no tensors.
  std::unique_ptr<CapturedGraph> Finish(absl::Span<const at::Tensor> outputs);

 private:
  void AddTensor(const at::Tensor& tensor, const Layout* base);
  void FindWrites();
  CapturedGraph::Output FindOutput(const at::Tensor& tensor);

  Capture capture_;
  std::unique_ptr<CapturedGraph> graph_ = std::make_unique<CapturedGraph>();
  std::vector<at::Tensor> placeholders_;
  std::vector<at::Tensor> bases_;  // by input: the tensor that covers its placeholder's storage
  std::vector<const c10::StorageImpl*> new_storages_;
};

}  // namespace tpu

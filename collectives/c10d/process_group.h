// torch.distributed's backend "tpu": c10d's verbs as collectives on values, queued on a stream of the group's own.
//
// A collective is cut from the window and queued at the call; the host never waits. Its operands and results are values
// (jit/external.h): it starts when its operands are done, and only who reads its results waits for it, so that it
// overlaps with whatever else the device computes. Collectives of a group run in the order of their calls; messages to
// and from each peer have a queue each. Made by bindings for torch.distributed; calls from any thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "collectives/c10d/launch.h"
#include "collectives/c10d/tensors.h"
#include "collectives/c10d/work.h"
#include "collectives/collective.h"
#include "collectives/device_ranks.h"

namespace tpu {

class ProcessGroupTpu final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using WorkRef = c10::intrusive_ptr<c10d::Work>;

  // Copied by Python when a group is split.
  struct TpuOptions final : Options {
    explicit TpuOptions(std::chrono::milliseconds timeout) : Options("tpu", timeout) {}
  };

  // Waits for all ranks; a name for what they do from here on, to prefix the store with: below it nobody has written.
  static std::string Meet(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                          std::chrono::milliseconds timeout);
  // Whether all ranks can share memory; each rank asks once, before Make. Exchanges through the store.
  static bool OnOneHost(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                        std::chrono::milliseconds timeout);
  // With `gloo`, of the same ranks, for ranks on several hosts.
  static c10::intrusive_ptr<ProcessGroupTpu> Make(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                  std::chrono::milliseconds timeout,
                                                  c10::intrusive_ptr<c10d::Backend> gloo);
  ~ProcessGroupTpu() override;
  // At exit: every group gives what is queued a moment, then fails it.
  static void LeaveAll();

  const std::string getBackendName() const override { return "tpu"; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void startCoalescing() override;
  WorkRef endCoalescing() override;
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override;
  void shutdown() override;
  void abort() override;
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }

  WorkRef broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkRef allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkRef allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkRef reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkRef allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkRef _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkRef allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkRef allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkRef gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkRef scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkRef reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkRef _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkRef reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkRef alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                        std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  WorkRef alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkRef send(Tensors& tensors, int peer, int tag) override;
  WorkRef recv(Tensors& tensors, int peer, int tag) override;
  WorkRef recvAnysource(Tensors& tensors, int tag) override { return recv(tensors, kAnyRank, tag); }
  WorkRef barrier(const c10d::BarrierOptions& options) override;

 private:
  // A call before it is queued.
  struct Issue {
    Collective collective;  // its pieces are filled in when it runs
    std::vector<Source> sources;
    std::vector<Target> targets;
    Tensors inputs, outputs;  // what the work holds and gives
    c10d::OpType type = c10d::OpType::UNKNOWN;
    int device = -1;  // of a barrier, which has no tensors
  };
  struct Reduction {
    ReduceOp op = ReduceOp::kSum;
    double scale = 1;
  };

  ProcessGroupTpu(int rank, int size, std::chrono::milliseconds timeout, c10::intrusive_ptr<c10d::Store> store,
                  std::shared_ptr<Group> group, std::shared_ptr<DeviceRanks> ranks,
                  c10::intrusive_ptr<c10d::Backend> gloo);
  friend class c10::intrusive_ptr<ProcessGroupTpu>;

  static Reduction ReductionOf(const c10d::ReduceOp& op);
  void CheckTensors(const char* verb, const Tensors& tensors, bool one_shape) const;
  WorkRef AllReduceSparse(at::Tensor& tensor, Reduction reduction);
  Issue GatherToAll(const at::Tensor& input, const Tensors& outputs) const;
  c10::intrusive_ptr<TpuWork> Queue(Issue issue);
  // The queue of collectives (peer kNoPeer), or of messages to or from a peer.
  Stream& StreamFor(int device, int peer, bool sends);
  // The one that the group uses, else that which torch or the caller names.
  int DeviceOf(const c10d::BarrierOptions& options);
  // Receives from any rank and from a given one that may be for the same message: the first of them takes it.
  void OrderReceive(int peer, CollectiveLaunch& launch);
  template <typename Each>
  WorkRef Coalesced(const Each& each);
  void Drain(std::chrono::milliseconds limit);

  const c10::intrusive_ptr<c10d::Store> store_;  // where its ranks met
  const std::shared_ptr<Group> group_;
  const std::shared_ptr<DeviceRanks> ranks_;  // null: ranks are processes
  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const c10::intrusive_ptr<Options> options_;
  std::mutex mutex_;                                 // guards what follows
  std::map<std::pair<int, bool>, Stream*> streams_;  // by peer, and whether it sends
  int device_ = -1;
  std::map<std::vector<int>, int> splits_;  // by their ranks, how many there were
  std::atomic<uint64_t> sequence_{0};
  c10::intrusive_ptr<TpuWork> coalesced_;  // since startCoalescing
};

}  // namespace tpu

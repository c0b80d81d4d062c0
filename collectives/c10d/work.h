// What an asynchronous collective gives its caller.
//
// Values order themselves: whoever reads a result waits for the collective that makes it, on the device. So wait() does
// not make the host wait, and the future is complete at once, as on a GPU. wait() makes the current stream wait, so
// that events and memory follow (FSDP frees what a collective read once a later event is reached). An error is raised
// by wait() once it is known, and by whatever reads a result. With a timeout, or of a barrier, wait() blocks the host.
// Holds its tensors. Any thread.
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/stream.h"

namespace tpu {

// One collective's place in the order of its stream, and how it ended.
struct Ticket {
  Stream* stream = nullptr;
  uint64_t sequence = 0;
  std::shared_ptr<const absl::Status> outcome;  // valid once the stream has done `sequence`
  bool Done() const { return stream->Done(sequence); }
};

class TpuWork final : public c10d::Work {
 public:
  TpuWork(int rank, c10d::OpType type, bool blocking, uint64_t sequence)
      : Work(rank, type), blocking_(blocking), sequence_(sequence) {}

  // Before anybody else sees it.
  void Add(Ticket ticket, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs);
  void Join(const TpuWork& other);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  void synchronize() override { wait(); }
  void blockCurrentStream() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void set_outputs(std::vector<at::Tensor> outputs) { outputs_ = std::move(outputs); }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  // Blocks until it is known. Of receives; -1 if it failed.
  int sourceRank() const override;
  void set_source(std::shared_ptr<const std::atomic<int>> rank) { source_ = std::move(rank); }

 private:
  absl::Status Outcome() const;  // of what is done

  const bool blocking_;
  const uint64_t sequence_;
  std::shared_ptr<const std::atomic<int>> source_;
  std::vector<Ticket> tickets_;
  std::vector<at::Tensor> inputs_, outputs_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace tpu

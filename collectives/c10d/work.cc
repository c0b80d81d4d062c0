#include "collectives/c10d/work.h"

#include <thread>
#include <utility>

#include "collectives/collective.h"
#include "dispatcher/errors.h"
#include "dispatcher/streams.h"
#include "jit/engine.h"

namespace tpu {

void TpuWork::Add(Ticket ticket, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs) {
  tickets_.push_back(std::move(ticket));
  inputs_.insert(inputs_.end(), inputs.begin(), inputs.end());
  outputs_.insert(outputs_.end(), outputs.begin(), outputs.end());
}

void TpuWork::Join(const TpuWork& other) {
  tickets_.insert(tickets_.end(), other.tickets_.begin(), other.tickets_.end());
  inputs_.insert(inputs_.end(), other.inputs_.begin(), other.inputs_.end());
  outputs_.insert(outputs_.end(), other.outputs_.begin(), other.outputs_.end());
}

absl::Status TpuWork::Outcome() const {
  for (const Ticket& t : tickets_) {
    if (t.Done() && !t.outcome->ok()) return *t.outcome;
  }
  return absl::OkStatus();
}

bool TpuWork::isCompleted() {
  for (const Ticket& t : tickets_) {
    if (!t.Done()) return false;
  }
  return true;
}

bool TpuWork::isSuccess() const { return Outcome().ok(); }

std::exception_ptr TpuWork::exception() const {
  try {
    ThrowIfError(Outcome());
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

int TpuWork::sourceRank() const {
  TORCH_CHECK(source_, "tpu process group: only a receive has a source rank");
  if (*source_ == kAnyRank) {
    for (const Ticket& t : tickets_) t.stream->WaitFor(t.sequence);
  }
  return *source_;
}

bool TpuWork::wait(std::chrono::milliseconds timeout) {
  if (timeout == kNoTimeout) {
    for (const Ticket& t : tickets_) {
      if (blocking_) {
        t.stream->WaitFor(t.sequence);
      } else if (!t.Done()) {
        Stream& current = CurrentStream(t.stream->device_index());
        Engine::Get().CutStream(current, CutReason::kCollective, "Work.wait");
        current.Enqueue([t] { t.stream->WaitFor(t.sequence); });
      }
    }
  } else {
    bool done = false;
    Blocking([&] {
      const auto end = std::chrono::steady_clock::now() + timeout;
      while (!(done = isCompleted()) && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
    TORCH_CHECK_WITH(DistBackendError, done, "tpu process group: ", opTypeToString(opType_), " #", sequence_,
                     " was not done within ", timeout.count(), " ms");
  }
  ThrowIfError(Outcome());
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> TpuWork::getFuture() {
  std::lock_guard<std::mutex> lock(future_mutex_);
  if (!future_) {
    std::vector<c10::Device> devices;
    if (!outputs_.empty()) devices.push_back(outputs_.front().device());
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    future_->markCompleted(c10::IValue(outputs_));
  }
  return future_;
}

}  // namespace tpu

#include "runtime/pjrt/flight.h"

#include "runtime/stream.h"

namespace tpu::pjrt {

void Flight::Begin(PJRT_Event* done, PJRT_Buffer* outside) {
  std::lock_guard lock(mutex_);
  done_ = done;
  outside_ = outside;
  if (outside == nullptr) return;
  auto args = TPU_PJRT_ARGS(PJRT_Buffer_ToHostBuffer);
  args.src = outside;
  args.dst = &is_outside_;
  args.dst_size = sizeof is_outside_;
  status_ = TPU_PJRT_CALL(client_->api(), PJRT_Buffer_ToHostBuffer, args);
  outside_read_ = args.event;
}

absl::Status Flight::Wait() {
  if (succeeded()) return absl::OkStatus();
  absl::Status status;
  // The lock is taken without Python's: whoever has it here must not wait for the other.
  Blocking([&] {
    std::lock_guard lock(mutex_);
    if (state_.load(std::memory_order_relaxed) == State::kRunning) {
      status_ = End();
      state_.store(status_.ok() ? State::kSucceeded : State::kFailed, std::memory_order_release);
    }
    status = status_;
  });
  return status;
}

absl::Status Flight::End() {
  const Api& api = client_->api();
  absl::Status own = api.Await(std::exchange(done_, nullptr));
  own.Update(status_);
  own.Update(api.Await(std::exchange(outside_read_, nullptr)));
  if (outside_ != nullptr) client_->Destroy(std::exchange(outside_, nullptr));
  if (own.ok() && is_outside_) own = absl::OutOfRangeError("index out of range");
  absl::Status inherited;
  for (const FlightRef& flight : before_) inherited.Update(flight->Wait());
  if (inherited.ok() && !own.ok() && explain_) own = explain_(own);
  before_.clear();
  explain_ = nullptr;
  return inherited.ok() ? own : inherited;
}

bool Flight::Ready() {
  if (state_.load(std::memory_order_acquire) != State::kRunning) return true;
  std::unique_lock lock(mutex_, std::try_to_lock);
  return lock && client_->api().Ready(done_) && client_->api().Ready(outside_read_);
}

void Flights::Add(FlightRef flight) {
  FlightRef oldest;
  {
    std::lock_guard lock(mutex_);
    flights_.push_back(std::move(flight));
    if (flights_.size() <= kMost) return;
    oldest = std::move(flights_.front());
    flights_.pop_front();
  }
  (void)oldest->Wait();
}

void Flights::WaitForAll() {
  std::deque<FlightRef> all;
  {
    std::lock_guard lock(mutex_);
    all = flights_;
  }
  for (const FlightRef& flight : all) (void)flight->Wait();
}

bool Flights::AllReady() {
  std::lock_guard lock(mutex_);
  for (const FlightRef& flight : flights_) {
    if (!flight->Ready()) return false;
  }
  return true;
}

}  // namespace tpu::pjrt

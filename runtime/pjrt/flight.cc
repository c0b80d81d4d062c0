#include "runtime/pjrt/flight.h"

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

void Flights::Add(FlightRef flight, const Stream* stream) {
  FlightRef oldest;
  {
    std::lock_guard lock(mutex_);
    std::deque<FlightRef>& own = flights_[stream];
    own.push_back(std::move(flight));
    if (own.size() <= kMost) return;
    oldest = std::move(own.front());
    own.pop_front();
  }
  (void)oldest->Wait();
}

absl::InlinedVector<FlightRef, Flights::kMost> Flights::Of(const Stream* stream) {
  absl::InlinedVector<FlightRef, kMost> found;
  std::lock_guard lock(mutex_);
  for (const auto& [launcher, flights] : flights_) {
    if (stream == nullptr || launcher == stream) found.insert(found.end(), flights.begin(), flights.end());
  }
  return found;
}

void Flights::WaitForAll(const Stream* stream) {
  for (const FlightRef& flight : Of(stream)) (void)flight->Wait();
}

bool Flights::AllReady(const Stream* stream) {
  for (const FlightRef& flight : Of(stream)) {
    if (!flight->Ready()) return false;
  }
  return true;
}

}  // namespace tpu::pjrt

// A launch that the plugin may still be running, and the few of them that a stream has at a time.
//
// Made by the executable; held by the results (what they wait for) and by the launches that read them. A launch whose
// input failed fails with that error: the first one wins. Any thread; waiting lets Python's lock go.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "runtime/device.h"
#include "runtime/pjrt/client.h"
#include "runtime/stream.h"

namespace tpu::pjrt {

class Flight;
using FlightRef = std::shared_ptr<Flight>;
using FlightRefs = absl::InlinedVector<FlightRef, 4>;

class Flight {
 public:
  // `before`: the launches whose results it reads. `explain` completes an error of its own; null: it stands as it is.
  Flight(std::shared_ptr<const Client> client, FlightRefs before, Explainer explain)
      : client_(std::move(client)), before_(std::move(before)), explain_(std::move(explain)) {}
  ~Flight() {
    if (done_ != nullptr) (void)Wait();
  }

  // It has been started: `done` tells its end; `outside`, which may be null, a result of i1: an index was out of range.
  void Begin(PJRT_Event* done, PJRT_Buffer* outside);
  // Until it has ended; its error.
  absl::Status Wait();
  bool succeeded() const { return state_.load(std::memory_order_acquire) == State::kSucceeded; }
  bool failed() const { return state_.load(std::memory_order_acquire) == State::kFailed; }
  bool Ready();  // Wait would not block

 private:
  enum class State : uint8_t { kRunning, kSucceeded, kFailed };

  absl::Status End();

  const std::shared_ptr<const Client> client_;
  std::mutex mutex_;
  FlightRefs before_;  // this and all below are guarded by mutex_
  Explainer explain_;
  PJRT_Event* done_ = nullptr;
  PJRT_Buffer* outside_ = nullptr;
  PJRT_Event* outside_read_ = nullptr;
  bool is_outside_ = false;
  absl::Status status_;
  std::atomic<State> state_{State::kRunning};
};

// What is in the air, by the stream whose task launched it (null: launches outside of streams), oldest first.
class Flights {
 public:
  static constexpr size_t kMost = 16;

  // Waits for the stream's oldest when there are kMost.
  void Add(FlightRef flight, const Stream* stream = Stream::Running());
  // Of one stream; of all if null.
  void WaitForAll(const Stream* stream);
  bool AllReady(const Stream* stream);

 private:
  absl::InlinedVector<FlightRef, kMost> Of(const Stream* stream);

  std::mutex mutex_;
  absl::flat_hash_map<const Stream*, std::deque<FlightRef>> flights_;  // guarded by mutex_
};

}  // namespace tpu::pjrt

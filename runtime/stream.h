// An ordered queue of work with one thread of its own, and the events that order streams among themselves.
//
// jit enqueues launches and copies; the dispatcher's guard and torch.tpu.Stream expose it. Tasks run one after another
// in the order of Enqueue; a task reports failure through the values it fills, never by throwing. The queue is bounded:
// Enqueue blocks (calling the blocking hook, which lets Python's lock go) while kMaxQueued tasks wait, unless called
// from a task of the stream itself; who holds a lock waits for room before and pushes. Any thread; a Stream outlives
// its tasks and is drained on destruction.
// In a forked child (fork.h) nothing runs: Enqueue drops the task and returns 0, waits return at once; callers that
// can raise an error ask CheckNotForked() first.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace tpu {

class Device;

class Stream {
 public:
  using Task = std::function<void()>;
  static constexpr uint64_t kMaxQueued = 64;

  Stream(Device* device, int id);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device* device() const { return device_; }
  int device_index() const { return device_index_; }
  int id() const { return id_; }

  // Returns the task's sequence number: 1, 2, ... ; the stream has run it when completed() >= it.
  uint64_t Enqueue(Task task);
  // The two halves of it. Others may push meanwhile, so that more than kMaxQueued wait.
  void WaitForRoom();
  uint64_t Push(Task task);
  // For a task that the caller had better run itself, as it waits for it right away or (`only_asleep`) it takes less
  // than waking the stream's thread: if the stream has nothing to do, its next sequence number, and the stream stands
  // still until the caller runs the task in its place. 0: Enqueue it.
  uint64_t Claim(bool only_asleep = false);
  void RunClaimed(Task task);  // on this thread, as the stream's; Python's lock is let go
  uint64_t enqueued() const { return enqueued_.load(std::memory_order_acquire); }
  uint64_t completed() const { return completed_.load(std::memory_order_acquire); }
  bool Done(uint64_t sequence) const { return completed() >= sequence; }
  void WaitFor(uint64_t sequence);  // blocks the caller; returns at once on the stream's own thread
  void Synchronize();               // what its tasks launched too
  bool Idle() const;                // Synchronize would not block
  bool OnOwnThread() const;
  static const Stream* Running();  // the stream whose task this thread runs; null: none
  static bool RunningClaimed();    // this thread runs a task in the place of the stream's
  // From a task on the stream's own thread, which calls this between two tasks when nobody has asked so for 100 ms.
  static void CallLater(void (*call)());

 private:
  struct Queue;  // the tasks, and what its thread and callers sleep on

  void Run();
  bool WaitForWork();  // false: stopped, with an empty queue
  void SleepUntil(uint64_t sequence);
  void Complete(uint64_t sequence);

  Device* const device_;
  const int device_index_;
  const int id_;
  std::atomic<uint64_t> enqueued_{0};
  std::atomic<uint64_t> completed_{0};
  std::unique_ptr<Queue> queue_;
};

// A point in a stream's order, with the time at which the stream reached it. Copyable handle semantics are the
// dispatcher's; here it is one object, re-recordable. Calls on one Event are the caller's to order.
class Event {
 public:
  void Record(Stream& stream);
  bool Query() const;  // true when never recorded
  void Synchronize() const;
  void Block(Stream& stream) const;  // work enqueued on `stream` after this runs after the event
  bool recorded() const { return point_ != nullptr; }
  // Milliseconds between two completed events.
  double ElapsedMs(const Event& end) const;

 private:
  struct Point {
    Stream* stream = nullptr;  // not touched once reached: the stream may be gone
    uint64_t sequence = 0;
    std::chrono::steady_clock::time_point time;
    std::atomic<bool> reached{false};
  };
  std::shared_ptr<Point> point_;
};

// Runs `wait` with the caller's interpreter lock released. Set once by the bindings; the default just calls.
using BlockingHook = void (*)(const std::function<void()>& wait);
void SetBlockingHook(BlockingHook hook);
void Blocking(const std::function<void()>& wait);

}  // namespace tpu

#include "runtime/stream.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/device.h"
#include "runtime/fork.h"
#include "runtime/spin.h"

namespace tpu {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

// How long a thread without a task spins before it sleeps. Going to sleep and being woken costs 5-50 us on each side:
// it spins for `spin` while tasks arrive within `gap`, else for kShortSpin. A program that has waited for the last task
// has nothing else under way, and what it gives next waits for this thread: longer spins pay there.
struct Patience {
  nanoseconds gap, spin;
};
constexpr Patience kPatience = {microseconds(40), microseconds(50)};
constexpr Patience kPatienceAfterWait = {microseconds(300), microseconds(400)};
constexpr nanoseconds kShortSpin = microseconds(3);
constexpr nanoseconds kWaiterSpin = microseconds(10);
constexpr nanoseconds kLater = microseconds(100'000);

thread_local const Stream* own_stream = nullptr;
thread_local void (*later)() = nullptr;
thread_local Clock::time_point asked_later;

// In between tasks.
void CallWhatIsDue() {
  if (later != nullptr && Clock::now() - asked_later >= kLater) std::exchange(later, nullptr)();
}

std::atomic<BlockingHook> blocking_hook{nullptr};

}  // namespace

void SetBlockingHook(BlockingHook hook) { blocking_hook.store(hook); }

void Blocking(const std::function<void()>& wait) {
  BlockingHook hook = blocking_hook.load();
  // A stream's own thread never holds the interpreter's lock.
  if (hook == nullptr || own_stream != nullptr) {
    wait();
  } else {
    hook(wait);
  }
}

struct Stream::Queue {
  std::mutex mutex;              // guards tasks, asleep, and changes of claimed, wake_at and stop
  std::condition_variable work;  // the thread waits here for tasks
  std::condition_variable done;  // callers wait here for completion or room
  // The least sequence number that somebody sleeps for: completing it, and no other, costs a notify.
  std::atomic<uint64_t> wake_at{UINT64_MAX};
  std::atomic<uint64_t> awaited{0};  // the last sequence number that somebody waited for
  std::atomic<bool> stop{false};
  std::atomic<bool> claimed{false};  // a caller runs a task in the thread's place
  bool asleep = false;
  std::deque<Task> tasks;
  // The thread's own: how long it lately waited for a task, and did so after one that was waited for.
  nanoseconds usual_gap{0}, usual_gap_after_wait{0};
  std::thread thread;
};

Stream::Stream(Device* device, int id)
    : device_(device),
      device_index_(device != nullptr ? device->index() : 0),
      id_(id),
      queue_(std::make_unique<Queue>()) {
  WatchForks();
  queue_->thread = std::thread([this] { Run(); });
  pthread_setname_np(queue_->thread.native_handle(), absl::StrCat("tpu-stream-", id).substr(0, 15).c_str());
}

Stream::~Stream() {
  if (InForkedChild()) {
    // Its thread does not exist here but counts as asleep on the condition variable, whose destruction would wait for
    // it.
    static_cast<void>(queue_.release());
    return;
  }
  {
    std::lock_guard lock(queue_->mutex);
    queue_->stop = true;
  }
  queue_->work.notify_one();
  queue_->thread.join();
}

bool Stream::OnOwnThread() const { return own_stream == this; }

const Stream* Stream::Running() { return own_stream; }

bool Stream::RunningClaimed() {
  return own_stream != nullptr && own_stream->queue_->thread.get_id() != std::this_thread::get_id();
}

void Stream::CallLater(void (*call)()) {
  later = call;
  asked_later = Clock::now();
}

uint64_t Stream::Enqueue(Task task) {
  WaitForRoom();
  return Push(std::move(task));
}

void Stream::WaitForRoom() {
  // Half the queue is let drain before the next task: one sleep for many tasks.
  const uint64_t last = enqueued();
  if (last > completed() + kMaxQueued) WaitFor(last - kMaxQueued / 2);
}

uint64_t Stream::Push(Task task) {
  if (InForkedChild()) {
    static const bool told = [] {
      std::fprintf(stderr, "torch_tpu: %s\n", std::string(CheckNotForked().message()).c_str());
      return true;
    }();
    static_cast<void>(told);
    return 0;
  }
  std::unique_lock lock(queue_->mutex);
  queue_->tasks.push_back(std::move(task));
  const uint64_t sequence = enqueued_.load(std::memory_order_relaxed) + 1;
  enqueued_.store(sequence, std::memory_order_release);
  const bool wake = queue_->asleep;
  queue_->asleep = false;  // one notify for each sleep
  lock.unlock();
  if (wake) queue_->work.notify_one();
  return sequence;
}

uint64_t Stream::Claim(bool only_asleep) {
  if (InForkedChild() || OnOwnThread()) return 0;
  const std::lock_guard lock(queue_->mutex);
  if (enqueued() != completed() || queue_->claimed || (only_asleep && !queue_->asleep)) return 0;
  queue_->claimed = true;
  enqueued_.store(completed() + 1, std::memory_order_release);
  return enqueued();
}

void Stream::RunClaimed(Task task) {
  Blocking([&]() noexcept {  // as on the stream's thread
    const Stream* const outer = std::exchange(own_stream, this);
    task();
    task = nullptr;
    own_stream = outer;
    Complete(completed() + 1);  // nobody waits for this thread to have Python's lock again
    std::unique_lock lock(queue_->mutex);
    queue_->claimed = false;
    const bool wake = queue_->asleep && !queue_->tasks.empty();
    if (wake) queue_->asleep = false;
    lock.unlock();
    if (wake) queue_->work.notify_one();
  });
}

void Stream::WaitFor(uint64_t sequence) {
  if (Done(sequence) || OnOwnThread() || InForkedChild()) return;
  queue_->awaited.store(sequence, std::memory_order_relaxed);
  if (SpinFor(kWaiterSpin, [&] { return Done(sequence); })) return;
  Blocking([&] { SleepUntil(sequence); });
}

void Stream::Synchronize() {
  WaitFor(enqueued());
  if (device_ != nullptr && !InForkedChild()) device_->Synchronize(this);
}

bool Stream::Idle() const { return Done(enqueued()) && (device_ == nullptr || device_->Idle(this)); }

void Stream::SleepUntil(uint64_t sequence) {
  std::unique_lock lock(queue_->mutex);
  // Complete() stores completed_ and then reads wake_at; here wake_at is stored and then completed_ read.
  // Sequentially consistent, so one of the two sees the other.
  while (true) {
    if (sequence < queue_->wake_at.load(std::memory_order_relaxed)) queue_->wake_at.store(sequence);
    if (completed_.load(std::memory_order_seq_cst) >= sequence) return;
    queue_->done.wait(lock);
  }
}

bool Stream::WaitForWork() {
  auto ready = [this] {
    return (enqueued() > completed() && !queue_->claimed.load(std::memory_order_acquire)) ||
           queue_->stop.load(std::memory_order_relaxed);
  };
  if (!ready()) {
    const Clock::time_point start = Clock::now();
    const bool after_wait = queue_->awaited.load(std::memory_order_relaxed) == completed();
    const Patience& patience = after_wait ? kPatienceAfterWait : kPatience;
    nanoseconds& usual_gap = after_wait ? queue_->usual_gap_after_wait : queue_->usual_gap;
    if (!SpinFor(usual_gap < patience.gap ? patience.spin : kShortSpin, ready)) {
      std::unique_lock lock(queue_->mutex);
      while (!ready()) {
        queue_->asleep = true;
        if (later == nullptr) {
          queue_->work.wait(lock);
        } else {
          queue_->work.wait_for(lock, kLater);
          lock.unlock();
          CallWhatIsDue();
          lock.lock();
        }
      }
      queue_->asleep = false;
    }
    usual_gap = (usual_gap * 3 + std::min<nanoseconds>(Clock::now() - start, 2 * patience.gap)) / 4;
  }
  return enqueued() > completed() || !queue_->stop.load(std::memory_order_relaxed);
}

void Stream::Run() {
  own_stream = this;
  while (WaitForWork()) {
    Task task;
    {
      std::lock_guard lock(queue_->mutex);
      if (queue_->tasks.empty() || queue_->claimed) continue;  // a caller was quicker
      task = std::move(queue_->tasks.front());
      queue_->tasks.pop_front();
    }
    task();
    task = nullptr;  // what it held is free before anybody sees it completed
    Complete(completed() + 1);
    CallWhatIsDue();
  }
}

void Stream::Complete(uint64_t sequence) {
  completed_.store(sequence, std::memory_order_seq_cst);
  if (sequence < queue_->wake_at.load(std::memory_order_seq_cst)) return;
  {
    std::lock_guard lock(queue_->mutex);
    queue_->wake_at.store(UINT64_MAX, std::memory_order_relaxed);  // those who wait for more set it again
  }
  queue_->done.notify_all();
}

void Event::Record(Stream& stream) {
  auto point = std::make_shared<Point>();
  point->stream = &stream;
  point->sequence = stream.Enqueue([point, &stream] {
    if (stream.device() != nullptr) stream.device()->Synchronize(&stream);
    point->time = Clock::now();
    point->reached.store(true, std::memory_order_release);
  });
  point_ = std::move(point);
}

bool Event::Query() const { return point_ == nullptr || point_->reached.load(std::memory_order_acquire); }

void Event::Synchronize() const {
  if (!Query()) point_->stream->WaitFor(point_->sequence);
}

void Event::Block(Stream& stream) const {
  if (Query() || point_->stream == &stream) return;
  stream.Enqueue([point = point_] {
    if (!point->reached.load(std::memory_order_acquire)) point->stream->WaitFor(point->sequence);
  });
}

double Event::ElapsedMs(const Event& end) const {
  Synchronize();
  end.Synchronize();
  if (point_ == nullptr || end.point_ == nullptr) return 0;
  return std::chrono::duration<double, std::milli>(end.point_->time - point_->time).count();
}

}  // namespace tpu

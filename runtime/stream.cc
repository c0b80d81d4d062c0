#include "runtime/stream.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/fork.h"

namespace tpu {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

// Going to sleep and being woken costs 5-50 us on each side. While tasks arrive faster than kBusyGap the thread spins
// for kLongSpin before it sleeps; an idle stream spins only kShortSpin.
constexpr nanoseconds kBusyGap = microseconds(40);
constexpr nanoseconds kLongSpin = microseconds(50);
constexpr nanoseconds kShortSpin = microseconds(3);
constexpr nanoseconds kWaiterSpin = microseconds(10);

thread_local const Stream* own_stream = nullptr;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Spins until `ready` or the time is up; says which.
template <typename Ready>
bool SpinFor(nanoseconds limit, const Ready& ready) {
  if (ready()) return true;
  const Clock::time_point end = Clock::now() + limit;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      Pause();
    }
  } while (Clock::now() < end);
  return ready();
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

Stream::Stream(Device* device, int id, int priority) : device_(device), id_(id), priority_(priority) {
  WatchForks();
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), absl::StrCat("tpu-stream-", id).substr(0, 15).c_str());
}

Stream::~Stream() {
  if (InForkedChild()) {
    new std::thread(std::move(thread_));  // names a thread that this process does not have: neither joined nor freed
    return;
  }
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  thread_.join();
}

bool Stream::OnOwnThread() const { return own_stream == this; }

uint64_t Stream::Enqueue(Task task) {
  if (InForkedChild()) {
    static const bool told = [] {
      std::fprintf(stderr, "torch_tpu: %s\n", std::string(CheckNotForked().message()).c_str());
      return true;
    }();
    static_cast<void>(told);
    return 0;
  }
  std::unique_lock lock(mutex_);
  while (queue_.size() >= kMaxQueued && !OnOwnThread()) {
    // Half the queue is let drain before the next task: one sleep for many tasks.
    const uint64_t half_drained = enqueued_.load(std::memory_order_relaxed) - kMaxQueued / 2;
    lock.unlock();
    WaitFor(half_drained);
    lock.lock();
  }
  queue_.push_back(std::move(task));
  const uint64_t sequence = enqueued_.load(std::memory_order_relaxed) + 1;
  enqueued_.store(sequence, std::memory_order_release);
  const bool wake = asleep_;
  asleep_ = false;  // one notify for each sleep
  lock.unlock();
  if (wake) work_.notify_one();
  return sequence;
}

void Stream::WaitFor(uint64_t sequence) {
  if (Done(sequence) || OnOwnThread() || InForkedChild()) return;
  if (SpinFor(kWaiterSpin, [&] { return Done(sequence); })) return;
  Blocking([&] { SleepUntil(sequence); });
}

void Stream::SleepUntil(uint64_t sequence) {
  std::unique_lock lock(mutex_);
  // Run() stores completed_ and then reads wake_at_; here wake_at_ is stored and then completed_ read. Sequentially
  // consistent, so one of the two sees the other.
  while (true) {
    if (sequence < wake_at_.load(std::memory_order_relaxed)) wake_at_.store(sequence, std::memory_order_seq_cst);
    if (completed_.load(std::memory_order_seq_cst) >= sequence) return;
    done_.wait(lock);
  }
}

bool Stream::WaitForWork() {
  auto ready = [this] {
    return enqueued_.load(std::memory_order_acquire) > completed_.load(std::memory_order_relaxed) ||
           stop_.load(std::memory_order_relaxed);
  };
  if (!ready()) {
    const Clock::time_point start = Clock::now();
    if (!SpinFor(usual_gap_ < kBusyGap ? kLongSpin : kShortSpin, ready)) {
      std::unique_lock lock(mutex_);
      while (!ready()) {
        asleep_ = true;
        work_.wait(lock);
      }
      asleep_ = false;
    }
    const nanoseconds gap = std::min<nanoseconds>(Clock::now() - start, 4 * kBusyGap);
    usual_gap_ = (usual_gap_ * 3 + gap) / 4;
  }
  return enqueued_.load(std::memory_order_acquire) > completed_.load(std::memory_order_relaxed);
}

void Stream::Run() {
  own_stream = this;
  while (WaitForWork()) {
    Task task;
    {
      std::lock_guard lock(mutex_);
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
    task = nullptr;  // what it held is free before anybody sees it completed
    const uint64_t sequence = completed_.load(std::memory_order_relaxed) + 1;
    completed_.store(sequence, std::memory_order_seq_cst);
    if (sequence >= wake_at_.load(std::memory_order_seq_cst)) {
      {
        std::lock_guard lock(mutex_);
        wake_at_.store(UINT64_MAX, std::memory_order_relaxed);  // those who wait for more set it again
      }
      done_.notify_all();
    }
  }
}

void Event::Record(Stream& stream) {
  auto point = std::make_shared<Point>();
  point->stream = &stream;
  point->sequence = stream.Enqueue([point] {
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

#include "runtime/stream.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "runtime/fork.h"

namespace tpu {
namespace {

using std::chrono::milliseconds;

// Holds a stream until released.
class Gate {
 public:
  Stream::Task Task() {
    return [future = future_] { future.wait(); };
  }
  void Open() { promise_.set_value(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

TEST(Stream, RunsTasksInOrder) {
  std::vector<int> seen;
  Stream stream(nullptr, 0);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(stream.Enqueue([&seen, i] { seen.push_back(i); }), static_cast<uint64_t>(i + 1));
  }
  stream.Synchronize();
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[i], i);
  EXPECT_EQ(stream.completed(), 1000u);
}

std::atomic<int> called_later{0};
std::atomic<std::thread::id> called_on;
std::atomic<std::chrono::steady_clock::time_point> called_at;

// Asks to be called later, and does nothing for a while or short tasks; then nobody has asked for longer than that.
TEST(Stream, CallsLaterOnItsOwnThreadWhetherIdleOrBusy) {
  Stream stream(nullptr, 0);
  std::thread::id own;
  for (bool busy : {false, true}) {
    called_later = 0;
    std::chrono::steady_clock::time_point asked;
    stream.Enqueue([&] {
      own = std::this_thread::get_id();
      asked = std::chrono::steady_clock::now();
      Stream::CallLater([] {
        called_at = std::chrono::steady_clock::now();
        called_on = std::this_thread::get_id();
        ++called_later;
      });
    });
    stream.Synchronize();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (called_later == 0 && std::chrono::steady_clock::now() < end) {
      if (busy) stream.Enqueue([] { std::this_thread::sleep_for(milliseconds(1)); });
    }
    stream.Synchronize();
    EXPECT_EQ(called_later, 1);
    EXPECT_GE(called_at.load() - asked, milliseconds(100));
    EXPECT_EQ(called_on.load(), own);
    std::this_thread::sleep_for(milliseconds(250));
    EXPECT_EQ(called_later, 1);
  }
}

TEST(Stream, RunsAClaimedTaskOnTheCallersThread) {
  Stream stream(nullptr, 0);
  std::thread::id ran_on;
  EXPECT_EQ(stream.Claim(), 1u);
  bool later = false;
  EXPECT_EQ(stream.Enqueue([&] { later = true; }), 2u);
  EXPECT_EQ(stream.Claim(), 0u);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(later);
  stream.RunClaimed([&] { ran_on = std::this_thread::get_id(); });
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_TRUE(stream.Done(1));
  stream.WaitFor(2);
  EXPECT_TRUE(later);
  bool ran = false;
  stream.WaitFor(stream.Enqueue([&] { ran = true; }));
  EXPECT_TRUE(ran);
}

TEST(Stream, IsNotClaimedWhileItIsBusy) {
  Gate gate;
  Stream stream(nullptr, 0);
  stream.Enqueue(gate.Task());
  EXPECT_EQ(stream.Claim(), 0u);
  gate.Open();
  stream.WaitFor(1);
  EXPECT_EQ(stream.Claim(), 2u);
  stream.RunClaimed([] {});
}

TEST(Stream, IsClaimedInThePlaceOfAWakeUpWhereItSleeps) {
  Gate gate;
  Stream stream(nullptr, 0);
  stream.Enqueue(gate.Task());
  EXPECT_EQ(stream.Claim(/*only_asleep=*/true), 0u);
  gate.Open();
  stream.WaitFor(1);
  uint64_t claimed = 0;
  while ((claimed = stream.Claim(/*only_asleep=*/true)) == 0) std::this_thread::yield();
  EXPECT_EQ(claimed, 2u);
  std::thread::id ran_on;
  stream.RunClaimed([&] { ran_on = std::this_thread::get_id(); });
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  bool ran = false;
  stream.WaitFor(stream.Enqueue([&] { ran = true; }));
  EXPECT_TRUE(ran);
}

TEST(Stream, KeepsItsOrderWhenManyThreadsClaimIt) {
  constexpr int kThreads = 4, kTasks = 2000;
  Stream stream(nullptr, 0);
  int inside = 0, ran = 0;  // guarded by the stream's order
  bool overlapped = false;
  const auto task = [&] {
    overlapped |= ++inside != 1;
    ++ran;
    --inside;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        const uint64_t claimed = (i + t) % 3 == 0 ? 0 : stream.Claim(/*only_asleep=*/(i + t) % 3 == 1);
        if (claimed != 0) stream.RunClaimed(task);
        stream.WaitFor(claimed != 0 ? claimed : stream.Enqueue(task));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stream.Synchronize();
  EXPECT_FALSE(overlapped);
  EXPECT_EQ(ran, kThreads * kTasks);
  EXPECT_EQ(stream.completed(), static_cast<uint64_t>(kThreads * kTasks));
}

TEST(Stream, IsDrainedOnDestruction) {
  int ran = 0;
  {
    Stream stream(nullptr, 0);
    for (int i = 0; i < 50; ++i) stream.Enqueue([&] { ++ran; });
  }
  EXPECT_EQ(ran, 50);
}

TEST(Stream, EnqueueBlocksWhileTheQueueIsFull) {
  Gate gate;
  Stream stream(nullptr, 0);
  stream.Enqueue(gate.Task());
  std::atomic<uint64_t> queued{0};
  std::thread producer([&] {
    for (int i = 0; i < 500; ++i) queued = stream.Enqueue([] {});
  });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_LE(queued, Stream::kMaxQueued + 1);
  EXPECT_GE(queued, Stream::kMaxQueued);
  gate.Open();
  producer.join();
  stream.Synchronize();
  EXPECT_EQ(stream.completed(), 501u);
}

TEST(Stream, PushNeverBlocksAndRoomIsWaitedForApart) {
  Gate gate;
  Stream stream(nullptr, 0);
  stream.Enqueue(gate.Task());
  for (uint64_t i = 0; i < 2 * Stream::kMaxQueued; ++i) EXPECT_EQ(stream.Push([] {}), i + 2);
  std::atomic<bool> room{false};
  std::thread waiter([&] {
    stream.WaitForRoom();
    room = true;
  });
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(room);
  gate.Open();
  waiter.join();
  stream.Synchronize();
  EXPECT_EQ(stream.completed(), 2 * Stream::kMaxQueued + 1);
}

TEST(Stream, ATaskMayEnqueueAndSynchronizeItsOwnStream) {
  Stream stream(nullptr, 0);
  std::atomic<int> ran{0};
  stream.Enqueue([&] {
    EXPECT_TRUE(stream.OnOwnThread());
    for (uint64_t i = 0; i < 2 * Stream::kMaxQueued; ++i) stream.Enqueue([&] { ++ran; });
    stream.Synchronize();  // returns at once
  });
  EXPECT_FALSE(stream.OnOwnThread());
  while (stream.enqueued() < 1 + 2 * Stream::kMaxQueued) std::this_thread::yield();
  stream.Synchronize();
  EXPECT_EQ(ran, 2 * static_cast<int>(Stream::kMaxQueued));
}

TEST(Stream, WhatATaskHeldIsFreeOnceItIsCompleted) {
  Stream stream(nullptr, 0);
  for (int i = 0; i < 200; ++i) {
    auto held = std::make_shared<int>(1);
    std::weak_ptr<int> watch = held;
    stream.WaitFor(stream.Enqueue([held = std::move(held)] {}));
    ASSERT_TRUE(watch.expired());
  }
}

TEST(Stream, ManyThreadsEnqueueAndWait) {
  Stream stream(nullptr, 0);
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        bool mine = false;
        const uint64_t at = stream.Enqueue([&] {
          ++ran;
          mine = true;
        });
        if ((i + t) % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(30));
        stream.WaitFor(at);
        ASSERT_TRUE(mine);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, 2400);
}

// Sleeping waiters of different sequence numbers are each woken, whatever the order they came in.
TEST(Stream, WakesEverySleeper) {
  for (int round = 0; round < 20; ++round) {
    Gate gate;
    Stream stream(nullptr, 0);
    stream.Enqueue(gate.Task());
    std::vector<std::thread> threads;
    for (uint64_t at : {5, 2, 9, 3, 10, 1}) threads.emplace_back([&stream, at] { stream.WaitFor(at); });
    for (int i = 0; i < 9; ++i) stream.Enqueue([] { std::this_thread::sleep_for(std::chrono::microseconds(100)); });
    std::this_thread::sleep_for(milliseconds(1));
    gate.Open();
    for (std::thread& thread : threads) thread.join();
  }
}

std::atomic<int> blockings{0};

TEST(Stream, WaitsThatBlockGoThroughTheHook) {
  SetBlockingHook([](const std::function<void()>& wait) {
    ++blockings;
    wait();
  });
  Gate gate;
  Stream stream(nullptr, 0);
  const uint64_t at = stream.Enqueue(gate.Task());
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(20));
    gate.Open();
  });
  stream.WaitFor(at);
  opener.join();
  EXPECT_EQ(blockings, 1);
  stream.WaitFor(at);
  EXPECT_EQ(blockings, 1) << "what is done is not waited for";
  SetBlockingHook(nullptr);
}

TEST(Event, OrdersStreamsAndMeasuresTime) {
  Stream a(nullptr, 0), b(nullptr, 1);
  std::atomic<int> step{0};
  Event start, end, never;
  EXPECT_TRUE(never.Query());
  EXPECT_FALSE(never.recorded());
  never.Synchronize();
  never.Block(a);
  start.Record(a);
  a.Enqueue([&] {
    std::this_thread::sleep_for(milliseconds(20));
    step = 1;
  });
  end.Record(a);
  EXPECT_FALSE(end.Query());
  end.Block(b);
  int seen = -1;
  b.Enqueue([&] { seen = step; });
  b.Synchronize();
  EXPECT_EQ(seen, 1);
  EXPECT_TRUE(end.Query());
  EXPECT_GE(start.ElapsedMs(end), 19.0);
  EXPECT_LE(start.ElapsedMs(end), 10000.0);
}

TEST(Event, OutlivesItsStream) {
  Event event;
  {
    Stream stream(nullptr, 0);
    event.Record(stream);
  }
  EXPECT_TRUE(event.Query());
  event.Synchronize();
}

#if !defined(__SANITIZE_THREAD__)  // its runtime refuses to go on in a forked child of a process with threads
TEST(Fork, AChildGetsAnErrorAndNeverHangs) {
  Stream stream(nullptr, 0);
  stream.WaitFor(stream.Enqueue([] {}));
  ASSERT_TRUE(CheckNotForked().ok());
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    bool ok = InForkedChild() && CheckNotForked().code() == absl::StatusCode::kFailedPrecondition;
    ok &= stream.Enqueue([] {}) == 0;
    stream.WaitFor(100);
    stream.Synchronize();
    {
      Event event;
      event.Record(stream);
      event.Synchronize();
    }
    stream.~Stream();
    _exit(ok ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif

}  // namespace
}  // namespace tpu

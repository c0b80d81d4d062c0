#include "jit/compile_pool.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "jit/engine.h"
#include "jit/tuning.h"
#include "runtime/fork.h"
#include "runtime/heap.h"
#include "runtime/thread_time.h"

namespace tpu {
namespace {

using State = FragmentEntry::State;

// About a sixth of a core that the program wants too: compiles give way, but a busy program still gets its code.
constexpr int kNice = 7;
// How much longer than it worked the pool rests beside a program that runs compiled code: niceness alone leaves a
// program that uses all cores waiting for the part of each parallel loop that a compile holds up.
constexpr int kRestShare = 20;
constexpr std::chrono::milliseconds kLongestRest(2000), kLook(50);
// Before a device settles first, and where none had to.
constexpr std::chrono::milliseconds kSettleFirst(500), kSettleLook(5000);
// One launch in so many may run op by op in such a program.
constexpr int64_t kCompiledToOne = 32;
// Jobs that may wait: a program of ever new fragments must not pile them up.
constexpr size_t kMostWaiting = 1024;

std::string Hashed(const std::string& text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

void CountWait(std::chrono::steady_clock::time_point start) {
  Metrics::Get().compile_wait_us.fetch_add((std::chrono::steady_clock::now() - start) / std::chrono::microseconds(1),
                                           std::memory_order_relaxed);
}

// A profile lies beside the programs as one of another format.
constexpr const char* kProfileFormat = "profile";
std::string ProfileKey(const std::string& key) { return Hashed(absl::StrCat(key, "|", kProfileFormat)); }

}  // namespace

CompilePool::CompilePool(Engine& engine, int threads)
    : engine_(engine), cache_(ProgramCache::FromFlags()), settle_after_(Clock::now() + kSettleFirst) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

CompilePool::~CompilePool() {
  Cancel();
  while (!Stop(std::chrono::hours(1))) {
  }
}

void CompilePool::Submit(FragmentRef entry, bool compile) {
  Push(Place::kInTurn, {.entry = std::move(entry), .compile = compile});
}

void CompilePool::Submit(std::shared_ptr<FragmentFamily> family) {
  Push(Place::kFirst, {.family = std::move(family)});  // serves many that would be compiled one by one
}

void CompilePool::SubmitLast(FragmentRef entry) { Push(Place::kWhenIdle, {.entry = std::move(entry)}); }

void CompilePool::Tune() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stop_) return;
  tune_ = true;
  work_.notify_one();
}

void CompilePool::Push(Place place, Job job) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stop_) return;
  switch (place) {
    case Place::kFirst:
      queue_.push_front(std::move(job));
      break;
    case Place::kInTurn:
      if (!MakeRoom()) return job.entry->state.store(State::kMissing, std::memory_order_release);
      queue_.push_back(std::move(job));
      break;
    case Place::kWhenIdle:
      last_.push_back(std::move(job));
      break;
  }
  work_.notify_one();
}

bool CompilePool::MakeRoom() {
  if (queue_.size() < kMostWaiting) return true;
  const auto oldest = std::find_if(queue_.begin(), queue_.end(), [](const Job& job) { return job.entry; });
  if (oldest == queue_.end()) return false;
  oldest->entry->state.store(State::kMissing, std::memory_order_release);  // it asks again when it is launched again
  queue_.erase(oldest);
  return true;
}

void CompilePool::Discard(std::vector<FragmentRef> entries) {
  if (entries.empty()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (stop_) return;
  discarded_.insert(discarded_.end(), std::make_move_iterator(entries.begin()), std::make_move_iterator(entries.end()));
  work_.notify_one();
}

void CompilePool::WaitFor(const FragmentRef& entry) {
  const auto done = [&] {
    State state = State::kMissing;
    if (entry->state.compare_exchange_strong(state, State::kCompiling)) {  // others pushed it out of the queue
      queue_.push_back({.entry = entry, .compile = true});
    }
    return state == State::kReady || state == State::kFailed;
  };
  WaitUntil(done, [&](const Job& job) { return job.entry == entry; });
}

void CompilePool::WaitFor(const FragmentFamily& family) {
  WaitUntil([&] { return !family.wanted(); }, [&](const Job& job) { return job.family.get() == &family; });
}

void CompilePool::WaitUntil(absl::FunctionRef<bool()> done, absl::FunctionRef<bool(const Job&)> is_it) {
  const auto start = Clock::now();
  std::unique_lock<std::mutex> lock(mutex_);
  ++waiters_;
  while (!stop_ && !done()) {
    std::deque<Job>& from = absl::c_any_of(queue_, is_it) ? queue_ : last_;
    if (const auto job = absl::c_find_if(from, is_it); job != from.end()) {
      DoOne(from, job, lock);
    } else {
      done_.wait(lock);  // a thread of the pool is at it
    }
  }
  --waiters_;
  lock.unlock();
  CountWait(start);
}

void CompilePool::WaitIdle(absl::FunctionRef<bool()> given_up) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++waiters_;
  work_.notify_all();
  bool stays = true;
  while (stays && !stop_ && !(Drained() && running_ == 0)) {
    if (queue_.empty()) {
      idle_.wait_for(lock, std::chrono::milliseconds(50));
    } else {
      DoOne(queue_, queue_.begin(), lock);
    }
    lock.unlock();
    stays = !given_up();
    lock.lock();
  }
  --waiters_;
}

void CompilePool::Cancel() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    queue_.clear();
    last_.clear();
    tune_ = false;
    settle_after_ = Clock::time_point::max();
  }
  engine_.backend().Cancel();
  idle_.notify_all();
  done_.notify_all();
}

bool CompilePool::Stop(std::chrono::milliseconds patience) {
  std::unique_lock<std::mutex> lock(mutex_);
  end_ = true;
  singles_.clear();
  work_.notify_all();
  if (!done_.wait_for(lock, patience, [&] { return running_ == 0; })) return false;
  lock.unlock();
  for (std::thread& t : threads_) {
    if (t.joinable()) t.join();
  }
  return true;
}

bool CompilePool::stopping() {
  std::lock_guard<std::mutex> lock(mutex_);
  return stop_;
}

void CompilePool::Run() {
  pthread_setname_np(pthread_self(), "tpu-compile");
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    const bool jobs = work_.wait_until(lock, settle_after_, [&] { return end_ || !Drained(); });
    if (end_) return;
    if (jobs && discarded_.empty() && singles_.empty() && Rest(lock)) continue;
    if (!discarded_.empty()) {
      std::vector<FragmentRef> gone = std::exchange(discarded_, {});
      Work(lock, [&] {
        for (const FragmentRef& entry : gone) engine_.tuner().Keep(*entry);
        gone.clear();
      });
    } else if (!singles_.empty()) {
      std::pair<CallRef, Device*> single = std::move(singles_.front());
      singles_.pop_front();
      Work(lock, [&] {
        (void)SingleOperation(single.first, *single.second, false);  // an error is found again by who asks for it
        single.first = nullptr;
      });
    } else if (!queue_.empty()) {
      DoOne(queue_, queue_.begin(), lock);
    } else if (!last_.empty()) {
      DoOne(last_, last_.begin(), lock);
    } else if (tune_) {
      tune_ = false;
      Work(lock, [&] { engine_.tuner().Advance(); });
    } else if (Clock::now() >= settle_after_) {  // of the threads one
      settle_after_ = Clock::time_point::max();
      bool settled = false;
      Work(lock, [&] {
        for (int d = 0; d < engine_.device_count(); ++d) settled |= engine_.device(d).Settle();
      });
      if (!stop_) settle_after_ = settled ? rest_until_ : Clock::now() + kSettleLook;
    }
  }
}

void CompilePool::DoOne(std::deque<Job>& from, std::deque<Job>::iterator at, std::unique_lock<std::mutex>& lock) {
  const bool last = &from == &last_;
  Job job = std::move(*at);
  from.erase(at);
  Work(lock, [&] {
    if (last) job.compile = engine_.tuner().Affords(*job.entry);
    const int64_t start = ThreadNanoseconds();
    Do(job);
    if (last) engine_.tuner().Spend(ThreadNanoseconds() - start);
    job = {};
  });
}

void CompilePool::Work(std::unique_lock<std::mutex>& lock, absl::FunctionRef<void()> work) {
  ++running_;
  lock.unlock();
  const Clock::time_point start = Clock::now();
  {
    const NoForkScope no_fork;  // unloading code takes the loader's locks, too
    work();
  }
  const Clock::time_point end = Clock::now();
  lock.lock();
  rest_until_ = std::max(rest_until_, end + std::min<Clock::duration>(kRestShare * (end - start), kLongestRest));
  done_.notify_all();
  if (--running_ == 0 && Drained()) idle_.notify_all();
}

bool CompilePool::Rest(std::unique_lock<std::mutex>& lock) {
  const Clock::time_point now = Clock::now();
  if (waiters_ > 0 || !engine_.device(0).host_addressable() || !ProgramRunsCompiled() || now >= rest_until_) {
    return false;
  }
  work_.wait_for(lock, std::min<Clock::duration>(rest_until_ - now, kLook));
  return true;
}

bool CompilePool::ProgramRunsCompiled() {
  const Clock::time_point now = Clock::now();
  if (now - looked_ < kLook) return runs_compiled_;
  const int64_t op_by_op = Metrics::Get().launches_tier0, compiled = Metrics::Get().launches_tier1;
  runs_compiled_ = (op_by_op - seen_op_by_op_) * kCompiledToOne < compiled - seen_compiled_;
  seen_op_by_op_ = op_by_op;
  seen_compiled_ = compiled;
  looked_ = now;
  return runs_compiled_;
}

void CompilePool::Do(const Job& job) {
  TrimHeapIfGrown();
  if (job.family) return DoFamily(*job.family);
  FragmentEntry& entry = *job.entry;
  Metrics& metrics = Metrics::Get();
  const Tuning tuning = engine_.tuner().Recall(entry, KeyOf(entry.fragment));
  const std::string key = KeyOf(entry.fragment, tuning);
  CompileRecord record{key, entry.fragment.Summary(), "disk", 0, entry.live_ops};
  const auto start = std::chrono::steady_clock::now();
  const int64_t work_start = ThreadNanoseconds();
  if (std::optional<Program> program = cache_.Load(key); program && Install(entry, *program)) {
    metrics.disk_cache_hits.fetch_add(1, std::memory_order_relaxed);
  } else if (!job.compile) {
    metrics.disk_cache_misses.fetch_add(1, std::memory_order_relaxed);
    entry.state.store(State::kMissing, std::memory_order_release);
    return;
  } else {
    absl::StatusOr<Program> compiled = CompileFragment(entry.fragment, tuning, key);
    entry.tuning.compile_nanoseconds = ThreadNanoseconds() - work_start;
    absl::Status status = compiled.status();
    if (status.ok() && !Install(entry, *compiled)) status = absl::InternalError("the program doesn't load");
    record.outcome = status.ok() ? "compiled" : std::string(status.message());
    if (!status.ok()) {
      entry.state.store(State::kFailed, std::memory_order_release);
      if (absl::IsCancelled(status)) return;
      if (metrics.compile_failures.fetch_add(1, std::memory_order_relaxed) == 0) {
        std::fprintf(stderr,
                     "torch_tpu: a fragment (%s) did not compile and stays on ready kernels: %s\n"
                     "torch_tpu: further compile failures are counted in torch.tpu.metrics(), not printed\n",
                     record.summary.c_str(), record.outcome.c_str());
      }
    }
  }
  record.milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  metrics.RecordCompile(std::move(record));
}

void CompilePool::DoFamily(FragmentFamily& family) {
  Metrics& metrics = Metrics::Get();
  while (const std::optional<FragmentFamily::Order> order = family.Take()) {
    const Fragment& first = order->fragments.front();
    std::string content, ranges;  // what differs in between is another family, too
    for (size_t i = 0; i < order->points.size(); ++i) {
      absl::StrAppend(&content, order->fragments[i].StableKey(), "|", absl::StrJoin(order->points[i], ","), "|");
    }
    for (size_t d = 0; d < order->range.least.size() && !order->places; ++d) {
      absl::StrAppend(&ranges, d == 0 ? ", sizes " : " by ", order->range.least[d], " to ", order->range.most[d]);
    }
    if (order->places) ranges = absl::StrCat(", windows at ", order->range.least.size(), " changing places");
    const std::string key = KeyOf(content);
    CompileRecord record{key, absl::StrCat(first.Summary(), ranges), "disk", 0, static_cast<int>(first.nodes.size())};
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::unique_ptr<ExecutableFamily>> programs;
    const auto load = [&](const absl::StatusOr<Program>& program) {
      if (!program.ok()) return program.status();
      programs.clear();
      for (int d = 0; d < engine_.device_count(); ++d) {
        absl::StatusOr<std::unique_ptr<ExecutableFamily>> loaded = engine_.device(d).LoadFamily(*program);
        if (!loaded.ok()) return loaded.status();
        programs.push_back(*std::move(loaded));
      }
      return absl::OkStatus();
    };
    const std::optional<Program> known = cache_.Load(key);
    if (known && load(*known).ok()) {
      metrics.disk_cache_hits.fetch_add(1, std::memory_order_relaxed);
    } else {
      const absl::Status status = load(Compiled(key, [&] {
        absl::StatusOr<Program> program =
            engine_.backend().CompileFamily(order->fragments, order->points, order->places);
        return program.ok() ? engine_.device(0).Complete(*std::move(program)) : program;
      }));
      if (absl::IsCancelled(status)) return;
      record.outcome = status.ok() ? "compiled" : std::string(status.message());
      if (!status.ok()) programs.clear();
    }
    record.milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    metrics.RecordCompile(std::move(record));
    if (programs.empty()) continue;
    family.Set(*order, std::move(programs));
    return;
  }
}

std::string CompilePool::KeyOf(const std::string& content) const {
  return Hashed(absl::StrCat(content, "|", engine_.device(0).Target(), "|", engine_.backend().Fingerprint()));
}

std::string CompilePool::KeyOf(const Fragment& fragment, const Tuning& tuning) const {
  return KeyOf(tuning == Tuning() ? fragment.StableKey() : absl::StrCat(fragment.StableKey(), "|", tuning.ToString()));
}

absl::StatusOr<Program> CompilePool::CompileFragment(const Fragment& fragment, const Tuning& tuning,
                                                     const std::string& key) {
  return Compiled(key, [&] { return Make(fragment, tuning); });
}

absl::StatusOr<Program> CompilePool::Make(const Fragment& fragment, const Tuning& tuning) {
  absl::StatusOr<Program> program = engine_.backend().Compile(fragment, tuning);
  return program.ok() ? engine_.device(0).Complete(*std::move(program)) : program;
}

absl::StatusOr<Program> CompilePool::Compiled(const std::string& key,
                                              absl::FunctionRef<absl::StatusOr<Program>()> compile) {
  Metrics& metrics = Metrics::Get();
  const auto start = std::chrono::steady_clock::now();
  absl::StatusOr<Program> program = compile();
  const auto elapsed =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
  metrics.compiles.fetch_add(1, std::memory_order_relaxed);
  metrics.compile_us.fetch_add(elapsed, std::memory_order_relaxed);
  if (program.ok()) cache_.Store(key, *program);
  return program;
}

absl::StatusOr<Program> CompilePool::ProgramOf(const Fragment& fragment, const Tuning& tuning) {
  std::optional<Program> kept = cache_.Load(KeyOf(fragment, tuning));
  return kept ? *std::move(kept) : Make(fragment, tuning);
}

void CompilePool::Store(const Fragment& fragment, const Tuning& tuning, const Program& program) {
  cache_.Store(KeyOf(fragment, tuning), program);
}

std::optional<Profile> CompilePool::LoadProfile(const std::string& key) {
  const std::optional<Program> kept = cache_.Load(ProfileKey(key));
  return kept && kept->format == kProfileFormat ? Profile::Decode(kept->bytes) : std::nullopt;
}

void CompilePool::StoreProfile(const std::string& key, const Profile& profile) {
  cache_.Store(ProfileKey(key), {kProfileFormat, profile.Encode(), {}, {}});
}

void CompilePool::Prepare(const FragmentEntry& entry, Device& device) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (end_) return;
  for (size_t i = 0; i < entry.fragment.nodes.size() && singles_.size() < kMostWaiting; ++i) {
    const CallRef& call = entry.fragment.nodes[i].call;
    if (entry.live[i] && call->needs_program) singles_.emplace_back(call, &device);
  }
  if (!singles_.empty()) work_.notify_all();
}

absl::StatusOr<std::shared_ptr<Executable>> CompilePool::SingleOperation(const CallRef& call, Device& device,
                                                                         bool awaited) {
  const std::pair<const Call*, const Device*> where{call.get(), &device};
  std::unique_lock<std::mutex> lock(single_mutex_);
  const auto found = [&] {
    const auto it = single_.find(where);
    return it != single_.end() && !it->second.call.expired() ? &it->second : nullptr;
  };
  Single* known = found();
  if (awaited && known != nullptr && known->executable == nullptr) {
    const Clock::time_point start = Clock::now();
    single_made_.wait(lock, [&] { return (known = found()) == nullptr || known->executable != nullptr; });
    CountWait(start);
  }
  if (known != nullptr) {
    known->last_asked = ++single_asked_;
    return known->executable;
  }
  if (single_.size() >= single_room_) DropSingles();
  single_[where] = {call};
  lock.unlock();
  const Clock::time_point start = Clock::now();
  absl::StatusOr<Single> made = CompileSingle(call, device);
  if (awaited) CountWait(start);
  lock.lock();
  single_made_.notify_all();
  if (!made.ok()) {
    single_.erase(where);
    return made.status();
  }
  made->last_asked = ++single_asked_;
  return (single_[where] = *std::move(made)).executable;
}

void CompilePool::DropSingles() {
  const size_t most = engine_.device(0).most_programs();
  absl::erase_if(single_, [](const auto& item) { return item.second.call.expired(); });
  std::vector<uint64_t> asked;
  for (const auto& [where, single] : single_) {
    if (single.executable) asked.push_back(single.last_asked);
  }
  if (asked.size() >= std::max<size_t>(most, 1)) {
    const auto latest_to_go = asked.begin() + static_cast<std::ptrdiff_t>(asked.size() / 8);
    std::nth_element(asked.begin(), latest_to_go, asked.end());
    absl::erase_if(single_,
                   [&](const auto& item) { return item.second.executable && item.second.last_asked <= *latest_to_go; });
  }
  single_room_ = std::min(most, std::max<size_t>(256, 2 * single_.size()));
}

absl::StatusOr<CompilePool::Single> CompilePool::CompileSingle(const CallRef& call, Device& device) {
  Fragment fragment;
  fragment.nodes = {{call, 0, 0}};
  fragment.inputs = call->operands;
  for (size_t i = 0; i < call->operands.size(); ++i) fragment.operands.push_back(InputId(static_cast<int>(i)));
  fragment.num_results = static_cast<uint32_t>(call->results.size());
  for (size_t i = 0; i < call->results.size(); ++i) fragment.outputs.push_back(static_cast<ValueId>(i));
  Single single{call};
  if (!PlacesOf(fragment).empty()) {
    single.family = single_families_.Find(fragment, Families::kNone);
    if (single.family->Add(fragment)) DoFamily(*single.family);
    single.executable = single.family->At(fragment, device.index());
    if (single.executable) return single;
  }
  absl::StatusOr<std::unique_ptr<Executable>> made = LoadOrCompile(fragment, device);
  if (!made.ok()) return made.status();
  single.executable = *std::move(made);
  return single;
}

absl::StatusOr<std::unique_ptr<Executable>> CompilePool::LoadOrCompile(const Fragment& fragment, Device& device) {
  const std::string key = KeyOf(fragment);
  if (const std::optional<Program> program = cache_.Load(key)) {
    absl::StatusOr<std::unique_ptr<Executable>> loaded = device.Load(*program);
    if (loaded.ok()) {
      Metrics::Get().disk_cache_hits.fetch_add(1, std::memory_order_relaxed);
      return loaded;
    }
    if (absl::IsResourceExhausted(loaded.status())) return loaded;
  }
  const absl::StatusOr<Program> program = CompileFragment(fragment, {}, key);
  if (!program.ok()) return program.status();
  return device.Load(*program);
}

bool CompilePool::Install(FragmentEntry& entry, const Program& program) {
  std::vector<std::unique_ptr<Executable>> loaded;
  for (int d = 0; d < engine_.device_count(); ++d) {
    absl::StatusOr<std::unique_ptr<Executable>> executable = engine_.device(d).Load(program);
    if (!executable.ok()) return false;
    loaded.push_back(std::move(*executable));
  }
  for (int d = 0; d < engine_.device_count(); ++d) {
    entry.Install(d, std::move(loaded[d]));
  }
  entry.state.store(State::kReady, std::memory_order_release);
  return true;
}

}  // namespace tpu

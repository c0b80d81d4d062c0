#include "jit/engine.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "jit/cluster.h"
#include "jit/compile_pool.h"
#include "jit/fragment_table.h"
#include "jit/tuning.h"
#include "jit/window.h"
#include "runtime/ending.h"
#include "runtime/flags.h"
#include "runtime/fork.h"
#include "runtime/machine.h"

namespace tpu {
namespace {

// What the launches of a fragment that its family's program serves have taken before it gets code for its size alone.
constexpr int64_t kHotNanoseconds = 300'000'000;
// Likewise its launches, where that program works on padding, too.
constexpr int64_t kHotUses = 256;

std::function<std::unique_ptr<Engine>()>& Factory() {
  static auto* factory = new std::function<std::unique_ptr<Engine>()>();
  return *factory;
}
std::atomic<Engine*> g_engine{nullptr};
thread_local bool compile_at_once = false;

Mode ModeFromFlags() {
  const std::string& mode = Flags::Get().mode;
  if (mode == "strict") return Mode::kStrict;
  if (mode == "debug") return Mode::kDebug;
  return Mode::kFused;
}

std::string Outcome(const FragmentEntry& entry) {
  switch (entry.cluster->end) {
    case Cluster::End::kNotFaster:
      return "dissolved: not faster";
    case Cluster::End::kWrongGuesses:
      return "dissolved: wrong guesses";
    case Cluster::End::kNotCompiled:
      return "dissolved: does not compile";
    case Cluster::End::kNone:
      break;
  }
  if (entry.state != FragmentEntry::State::kReady) return "waits for its program";
  return entry.cluster->kept ? "kept" : "tried";
}

// At exit, of the second that leaving may take: for what is launched, and for compilers.
constexpr std::chrono::milliseconds kStreamsPatience(300), kCompilersPatience(500);
constexpr std::chrono::milliseconds kGlance(1);

constexpr int kMostCompileThreads = 16;  // compilers need memory, too

// A device of its own leaves the cores to the compiler, but for the one that records.
int CompileThreads(const Device& device) {
  const Flags& flags = Flags::Get();
  if (flags.compile_threads > 0) return flags.compile_threads;
  if (device.host_addressable()) return 1;
  const int share = UsableCores() / std::max(1, flags.local_ranks);
  return std::clamp(share - 1, 1, kMostCompileThreads);
}

}  // namespace

CompileAtOnce::CompileAtOnce() : former_(std::exchange(compile_at_once, true)) {}
CompileAtOnce::~CompileAtOnce() { compile_at_once = former_; }

Engine& Engine::Get() {
  Engine* engine = g_engine.load(std::memory_order_acquire);
  if (engine != nullptr) return *engine;
  // Leaked on purpose: tensors of other libraries' statics may outlive ours.
  static Engine* const made = [] {
    Engine* e = Factory()().release();
    g_engine.store(e, std::memory_order_release);
    return e;
  }();
  return *made;
}

bool Engine::IsInitialized() { return g_engine.load(std::memory_order_acquire) != nullptr; }
void Engine::SetFactory(std::function<std::unique_ptr<Engine>()> factory) { Factory() = std::move(factory); }

Engine::Engine(std::vector<std::unique_ptr<Device>> devices, std::unique_ptr<CompilerBackend> backend)
    : devices_(std::move(devices)),
      backend_(std::move(backend)),
      mode_(ModeFromFlags()),
      next_stream_(devices_.size(), 1),
      streams_(devices_.size()),
      windows_(devices_.size()),
      lent_(devices_.size()),
      table_(std::make_unique<FragmentTable>(static_cast<int>(devices_.size()), Flags::Get().known_ops,
                                             devices_.front()->most_programs())) {
  for (size_t d = 0; d < devices_.size(); ++d) {
    streams_[d].resize(kMaxStreams);
    windows_[d].resize(kMaxStreams);
  }
  tuner_ = std::make_unique<Tuner>(*this);
  pool_ = std::make_unique<CompilePool>(*this, CompileThreads(*devices_.front()));
}

Engine::~Engine() { Shutdown(); }

Stream& Engine::stream(int device, int id) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& slot = streams_[device][id];
  if (!slot) {
    slot = std::make_unique<Stream>(devices_[device].get(), id);
    windows_[device][id] = std::make_unique<Window>(*this, *slot);
  }
  return *slot;
}

Stream& Engine::NewStream(int device) {
  int id;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    id = next_stream_[device];
    next_stream_[device] = id + 1 < kMaxStreams ? id + 1 : 1;
  }
  return stream(device, id);
}

Stream& Engine::BorrowStream(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Stream*& free : returned_) {
    if (free->device_index() != device) continue;
    std::swap(free, returned_.back());
    Stream& stream = *returned_.back();
    returned_.pop_back();
    return stream;
  }
  auto& lent = lent_[device];
  const int id = kMaxStreams + static_cast<int>(lent.size());
  lent.push_back(std::make_unique<Stream>(devices_[device].get(), id));
  return *lent.back();
}

void Engine::ReturnStream(Stream& stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  returned_.push_back(&stream);
}

Window& Engine::window(Stream& stream) {
  // Written before the stream is handed out, never moved.
  return *windows_[stream.device_index()][stream.id()];
}

absl::Status Engine::Await(const ValueRef& value, const std::string& what, CutReason reason) {
  if (InForkedChild() && !value->done()) return CheckNotForked();
  Metrics::Get().reads.fetch_add(1, std::memory_order_relaxed);
  const bool first = !value->read_.exchange(true, std::memory_order_relaxed);
  if (Window* pending_in = value->window_.load(std::memory_order_acquire)) {
    pending_in->Cut(reason, what, value.get());
  } else if (first && value->sequence_ != 0 && value->stream_->id() < kMaxStreams) {
    window(*value->stream_).CutOwn(reason, what);
  }
  if (value->stream_ != nullptr) value->stream_->WaitFor(value->sequence_);
  if (!value->done()) return absl::FailedPreconditionError("a kernel waits for what its own stream computes after it");
  if (value->error_) return *value->error_;
  // What is ready from the start has no stream.
  return value->stream_ != nullptr && value->buffer_ ? value->stream_->device()->Wait(value->buffer_)
                                                     : absl::OkStatus();
}

void Engine::CutStream(Stream& stream, CutReason reason, const std::string& what) { window(stream).Cut(reason, what); }

void Engine::SynchronizeStream(Stream& stream) {
  window(stream).Cut(CutReason::kSynchronize, "Stream.synchronize", nullptr, true);
  stream.Synchronize();
}

std::vector<Window*> Engine::WindowsOf(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Window*> windows;
  for (const auto& w : windows_[device]) {
    if (w) windows.push_back(w.get());
  }
  return windows;
}

void Engine::SynchronizeDevice(int device) {
  const std::vector<Window*> windows = WindowsOf(device);
  const bool alone = windows.size() == 1;  // no other stream's work would wait for what is run here
  for (Window* w : windows) w->Cut(CutReason::kSynchronize, "synchronize", nullptr, alone);
  SynchronizeStreams(device);
}

void Engine::AllowMemory(int device, int64_t bytes) {
  SynchronizeDevice(device);
  devices_[device]->AllowMemory(bytes);
  const int64_t allowed = devices_[device]->memory_stats().allowed_bytes;
  const std::vector<Window*> windows = WindowsOf(device);
  std::lock_guard<std::mutex> lock(recording_lock_);
  for (Window* w : windows) w->AllowMemory(allowed);
}

std::vector<Stream*> Engine::StreamsOf(int device) {
  std::vector<Stream*> streams;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto* kind : {&streams_[device], &lent_[device]}) {
    for (const auto& s : *kind) {
      if (s) streams.push_back(s.get());
    }
  }
  return streams;
}

void Engine::SynchronizeStreams(int device) {
  for (Stream* s : StreamsOf(device)) s->Synchronize();
}

void Engine::set_mode(Mode mode) {
  for (int d = 0; d < device_count(); ++d) SynchronizeDevice(d);
  mode_ = mode;
}

std::vector<FragmentRef> Engine::Fragments() {
  std::lock_guard<std::mutex> lock(recording_lock_);
  return table_->All();
}

std::vector<ClusterRecord> Engine::Clusters() {
  std::lock_guard<std::mutex> lock(recording_lock_);
  std::vector<ClusterRecord> records;
  for (const FragmentRef& entry : table_->All()) {
    if (!entry->cluster) continue;
    const Cluster& c = *entry->cluster;
    const auto milliseconds = [&](bool whole) { return static_cast<double>(c.trial->nanoseconds(whole)) / 1e6; };
    records.push_back({entry->fragment.Summary(), entry->FirstLine(), Outcome(*entry), c.parts.size(),
                       entry->fragment.nodes.size(), milliseconds(false), milliseconds(true), c.followed,
                       c.wrong_guesses});
  }
  return records;
}

void Engine::Launched(const FragmentRef& entry) {
  using State = FragmentEntry::State;
  const int64_t uses = ++entry->uses;
  State state = entry->state.load(std::memory_order_acquire);
  if (state == State::kReady) {
    Metrics::Get().memory_cache_hits.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const auto hot_of_family = [&] {
    // Fragments that hand values to one another leave together: else each launch would pad them or cut them.
    if (backend_->families() == Families::kPadded) return uses >= kHotUses;
    return entry->profile[1].nanoseconds >= kHotNanoseconds;
  };
  const bool hot =
      compile_at_once || fixed() || (IsServed(*entry) ? hot_of_family() : uses >= Flags::Get().compile_after);
  if (state == State::kNew) {
    entry->state.store(State::kLoading, std::memory_order_release);
    pool_->Submit(entry, hot);
  } else if (state == State::kMissing && hot) {
    if (entry->state.compare_exchange_strong(state, State::kCompiling)) pool_->Submit(entry, true);
  }
}

bool Engine::IsServed(const FragmentEntry& entry) {
  const FragmentFamily* family = entry.family.get();
  return family != nullptr && !entry.left_out && (family->wanted() || family->ready());
}

void Engine::JoinFamily(const FragmentRef& entry) {
  const Families kind = backend_->families();
  if (kind == Families::kNone || UpdateFixed()) return;
  entry->family = families_.Find(entry->fragment, kind);
  if (entry->family->Add(entry->fragment)) pool_->Submit(entry->family);
}

void Engine::WaitForCompiles(absl::FunctionRef<bool()> given_up) { pool_->WaitIdle(given_up); }

bool Engine::Shutdown() {
  pool_->Cancel();
  const auto end = std::chrono::steady_clock::now() + kStreamsPatience;
  for (int d = 0; d < device_count(); ++d) {
    for (Stream* s : StreamsOf(d)) {
      while (!s->Idle() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kGlance);
      if (!s->Idle()) ending = true;
    }
  }
  for (int d = 0; d < device_count(); ++d) SynchronizeStreams(d);
  if (!pool_->Stop(kCompilersPatience)) return false;
  tuner_->KeepAll();
  return true;
}

}  // namespace tpu

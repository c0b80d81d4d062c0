// The process's devices, streams and windows, and the path from a cut fragment to its launch: in-memory table, disk
// cache, tier 0 at once, tier 1 when the compile pool has it.
//
// Initialised once by the composition root (bindings/composition.cc or a test); used by the dispatcher. Any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compiler/backend.h"
#include "compiler/fragment.h"
#include "jit/family.h"
#include "jit/metrics.h"
#include "jit/value.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace tpu {

class Window;
class CompilePool;
class FragmentTable;
class Tuner;
struct FragmentEntry;

// An operand of a ready kernel. With a window, a "tpu::view", the operand is that window of the buffer's elements.
// A donated operand without a window holds the only Ref: the kernel may write over it.
struct KernelInput {
  Argument argument;
  const Call* window = nullptr;
};

// Runs one call on the device's memory by a ready kernel: tier 0, and nodes without a lowering. Given by the
// dispatcher (ATen's CPU kernels). `outputs` arrive empty and leave filled with row-major buffers.
using CallRunner = std::function<absl::Status(Device& device, const Call& call, absl::Span<const KernelInput> inputs,
                                              absl::Span<BufferRef> outputs)>;
// The user's file:line at this moment, or "" where no Python frame can be seen (another thread than Python's).
using WhereHook = std::string (*)();
// Whether results must be bitwise equal from run to run: timing may decide nothing.
using FixedHook = bool (*)();

// While one lives on a thread, what that thread cuts is compiled at its first launch, however rarely it has run.
class CompileAtOnce {
 public:
  CompileAtOnce();
  ~CompileAtOnce();

 private:
  const bool former_;
};

struct ClusterRecord {
  std::string summary, where, outcome;
  size_t parts = 0, ops = 0;
  double before_ms = 0, after_ms = 0;  // of its halves, of itself; 0: not timed
  int64_t followed = 0, wrong_guesses = 0;
};

inline constexpr int kMaxStreams = 33;  // of a device: its default and those that NewStream hands out

enum class Mode : uint8_t { kFused, kStrict, kDebug };

class Engine {
 public:
  // The process's engine; made at first use by the factory that SetFactory registered.
  static Engine& Get();
  static bool IsInitialized();
  static void SetFactory(std::function<std::unique_ptr<Engine>()> factory);

  Engine(std::vector<std::unique_ptr<Device>> devices, std::unique_ptr<CompilerBackend> backend);
  ~Engine();

  int device_count() const { return static_cast<int>(devices_.size()); }
  Device& device(int index) const { return *devices_[index]; }
  CompilerBackend& backend() const { return *backend_; }

  // Stream 0 of a device is its default; NewStream hands out the others, round robin. All live for ever.
  Stream& stream(int device, int id);  // below kMaxStreams
  Stream& NewStream(int device);
  Window& window(Stream& stream);
  // A stream without a window, for work that is no fragment (external.h): lives for ever, is lent again once returned.
  Stream& BorrowStream(int device);
  void ReturnStream(Stream& stream);

  // Waits until the value is done. The error, if it failed. Counts a read and cuts the window it is pending in; where
  // it is launched already, its first read cuts what this thread has pending on its stream, which the device begins
  // meanwhile: else a step's end and the next one's beginning would be one fragment, of both their sizes.
  absl::Status Await(const ValueRef& value, const std::string& what, CutReason reason = CutReason::kRead);
  // Queues what is pending on the stream (events and stream synchronisation order after it).
  void CutStream(Stream& stream, CutReason reason, const std::string& what);
  // Runs what is pending on the stream, here if it has nothing else to do, and waits for the stream.
  void SynchronizeStream(Stream& stream);
  // Cuts every window of the device and waits for its streams.
  void SynchronizeDevice(int device);
  // Runs what was recorded, then Device::AllowMemory.
  void AllowMemory(int device, int64_t bytes);

  void set_call_runner(CallRunner runner) { call_runner_ = std::move(runner); }
  const CallRunner& call_runner() const { return call_runner_; }
  // Called on a stream's thread after a launch that took a while.
  void set_long_launch_hook(void (*hook)()) { long_launch_hook_ = hook; }
  void NoteLongLaunch() const {
    if (long_launch_hook_ != nullptr) long_launch_hook_();
  }
  void set_where_hook(WhereHook hook) { where_hook_ = hook; }
  void set_fixed_hook(FixedHook hook) { fixed_hook_ = hook; }
  // While it is, fragments run compiled from their first launch, waiting for their programs, and no program changes.
  // Asks the hook (on the threads that cut).
  bool UpdateFixed() { return fixed_ = fixed_hook_ != nullptr && fixed_hook_(); }
  bool fixed() const { return fixed_; }  // as of the latest cut
  std::string Where() const { return where_hook_ ? where_hook_() : std::string(); }

  Mode mode() const { return mode_; }
  void set_mode(Mode mode);

  FragmentTable& table() { return *table_; }
  // Every known fragment, with what its launches took.
  std::vector<Ref<FragmentEntry>> Fragments();
  // Every cluster that was made, for people.
  std::vector<ClusterRecord> Clusters();
  // A fragment was queued: looks for its program, or asks for it, as its use says. Called under the recording lock.
  void Launched(const Ref<FragmentEntry>& entry);
  // Whether the fragment has, or will have, its family's program.
  static bool IsServed(const FragmentEntry& entry);
  // A fragment is known from now on. Called under the recording lock.
  void JoinFamily(const Ref<FragmentEntry>& entry);
  CompilePool& pool() { return *pool_; }
  Tuner& tuner() { return *tuner_; }
  // Guards every window of the process. Never held while waiting for the device or for Python's lock.
  std::mutex& recording_lock() { return recording_lock_; }
  // Blocks until the compile pool is idle (tests, benchmarks), or `given_up`, which is asked now and then.
  void WaitForCompiles(absl::FunctionRef<bool()> given_up = [] { return false; });
  // At exit: stops compiles, and runs what is queued for a moment; what is left then fails (ending.h). What is only
  // pending nobody reads any more. False: a compiler that can't be stopped is at work, and must not be unloaded.
  bool Shutdown();

 private:
  std::vector<Window*> WindowsOf(int device);
  std::vector<Stream*> StreamsOf(int device);
  void SynchronizeStreams(int device);

  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<CompilerBackend> backend_;
  CallRunner call_runner_;
  void (*long_launch_hook_)() = nullptr;
  WhereHook where_hook_ = nullptr;
  FixedHook fixed_hook_ = nullptr;
  std::atomic<bool> fixed_{false};
  std::atomic<Mode> mode_{Mode::kFused};
  std::mutex mutex_;
  std::vector<int> next_stream_;                               // guarded by mutex_
  std::vector<std::vector<std::unique_ptr<Stream>>> streams_;  // [device][id], guarded by mutex_
  std::vector<std::vector<std::unique_ptr<Window>>> windows_;  // likewise
  std::vector<std::vector<std::unique_ptr<Stream>>> lent_;     // [device], guarded by mutex_
  std::vector<Stream*> returned_;                              // of these, guarded by mutex_
  std::mutex recording_lock_;
  std::unique_ptr<FragmentTable> table_;
  FamilyTable families_;
  std::unique_ptr<Tuner> tuner_;
  std::unique_ptr<CompilePool> pool_;
};

}  // namespace tpu

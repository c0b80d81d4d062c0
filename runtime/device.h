// The seam between what is computed and where: one small interface, implemented by runtime/host (this machine's CPU)
// and runtime/pjrt (plugins of the PJRT C API), each held to tests/conformance.
//
// Called by jit (allocate, load, launch) and by the dispatcher (copies, statistics). Devices live as long as the
// process. Every method may be called from any thread. Launch is called by a Stream's own thread; it may return before
// the work is done. Copies, Wait and Synchronize block the calling thread until it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/buffer.h"
#include "runtime/convolution.h"
#include "runtime/program.h"

namespace tpu {

class Stream;

struct MemoryStats {
  int64_t allocated_bytes = 0;  // held by live buffers
  int64_t peak_allocated_bytes = 0;
  int64_t reserved_bytes = 0;  // taken from the system: live plus cached
  int64_t peak_reserved_bytes = 0;
  int64_t limit_bytes = 0;        // the memory size
  int64_t allowed_bytes = 0;      // what live buffers may take of it
  int64_t num_allocs = 0;         // requests served
  int64_t num_system_allocs = 0;  // requests that had to go to the system
  int64_t num_ooms = 0;
};

// One input of a launch: a value's buffer, or the bits of a scalar that travels with the launch.
struct Argument {
  BufferRef buffer;
  uint64_t scalar_bits = 0;  // used when buffer is null
  // The caller gives the buffer up: when it holds the only Ref, an output may be written over it.
  bool donated = false;
};

// Runs node `node` of the fragment by a kernel that is not in the Program (a host kernel of ATen's). Fills `outputs`.
using NodeRunner =
    std::function<absl::Status(int node, absl::Span<const Argument> inputs, absl::Span<BufferRef> outputs)>;

// Completes an error that shows only after Launch has returned: what ran, and where it was recorded. Called at most
// once, on any thread.
using Explainer = std::function<absl::Status(const absl::Status& error)>;

// What the kernels of one label took, of the launches that were timed kernel by kernel.
struct KernelTime {
  std::string label;  // for people: the primitives that they compute
  int64_t runs = 0;   // launches
  int64_t nanoseconds = 0;
  int64_t bytes = 0;  // of their operands and results, in one launch
  friend bool operator==(const KernelTime&, const KernelTime&) = default;
};

class Executable {
 public:
  virtual ~Executable() = default;
  // Fills every entry of `outputs`, in the Program's order. After an error those that depend on what failed are null
  // (all, where nothing was run), and so are the inputs' buffers that were written over; of several errors it is the
  // first. An output that is one of the inputs unchanged shares its buffer. Not reentrant on one thread's temporaries
  // but callable from several threads at once. Where the device runs on behind Launch, later errors are `explain`ed and
  // belong to the outputs (Device::Wait), and to whatever is computed from them.
  virtual absl::Status Launch(absl::Span<Argument> inputs, absl::Span<BufferRef> outputs, const NodeRunner& run_node,
                              const Explainer& explain = nullptr) = 0;
  // How many nodes each launch hands to run_node (0 for most).
  virtual int calls_per_launch() const = 0;
  // By label, in the order of the first; one launch of some is timed so. Empty where the device does not tell.
  virtual std::vector<KernelTime> kernel_times() const { return {}; }
};

// A program for many values of one size, or of two, loaded.
class ExecutableFamily {
 public:
  virtual ~ExecutableFamily() = default;
  // For these sizes: microseconds, no compiler. OutOfRange where the program does not serve them. Any thread.
  virtual absl::StatusOr<std::unique_ptr<Executable>> At(absl::Span<const int64_t> sizes) = 0;
};

// C[i] = A[i] B[i] of f32 matrices, m x k and k x n. A row-major one has its rows lda elements apart, a transposed one
// its columns; likewise B; C is row-major without gaps. Matrices of a batch lie stride_a and stride_b elements apart.
struct MatrixProduct {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;
  int64_t lda = 0, ldb = 0, stride_a = 0, stride_b = 0;
  const float *a = nullptr, *b = nullptr;
  float* c = nullptr;
};

// What one device has of a launch of several.
struct Share {
  const Stream* stream = nullptr;  // whose task brings it: Device::Synchronize waits for it there
  absl::Span<Argument> inputs;
  absl::Span<BufferRef> outputs;
};

// A program that several devices run at once, and in which they exchange elements.
class JointExecutable {
 public:
  virtual ~JointExecutable() = default;
  // One share for each device, in the order of LoadJoint. As Executable::Launch; nothing is donated. An error that
  // shows later belongs to the results of all devices.
  virtual absl::Status Launch(absl::Span<const Share> shares) = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual int index() const = 0;
  virtual std::string Describe() const = 0;  // one line for people
  virtual std::string Target() const = 0;    // part of the cache key: CPU name and features, or platform and topology

  // True when a Buffer's data() is an address that this process reads and writes: host kernels run in place.
  virtual bool host_addressable() const = 0;

  // ResourceExhausted when what is allowed would be passed even after dropping caches; the message has the numbers.
  // Memory is 64-byte aligned where it is addressable, and uninitialised. bytes may be 0.
  virtual absl::StatusOr<BufferRef> Allocate(size_t bytes) = 0;
  // A value's buffer, from its row-major elements; uninitialised when `source` is null. ResourceExhausted likewise.
  virtual absl::StatusOr<BufferRef> MakeValue(const TensorType& type, const void* source) = 0;
  virtual absl::Status CopyToHost(const BufferRef& source, void* destination, size_t bytes) = 0;

  // Until the buffer has its contents; the error of the launch that should have made them.
  virtual absl::Status Wait(const BufferRef& buffer) { return absl::OkStatus(); }
  // Until every launch so far by tasks of `stream` has ended, of all streams if null; errors stay with their results.
  virtual void Synchronize(const Stream* stream) {}
  virtual bool Idle(const Stream* stream) { return true; }  // Synchronize would not block

  // What is kept of a program that the backend made: a device whose own compiler goes on from there adds its result.
  virtual absl::StatusOr<Program> Complete(Program program) { return program; }
  virtual absl::StatusOr<std::unique_ptr<Executable>> Load(const Program& program) = 0;
  // How many programs may be loaded at a time, about: what is asked for more keeps those that ran lately.
  virtual size_t most_programs() const { return std::numeric_limits<int>::max(); }
  // A program that CompilerBackend::CompileFamily made. Unimplemented where there are none.
  virtual absl::StatusOr<std::unique_ptr<ExecutableFamily>> LoadFamily(const Program& program) {
    return absl::UnimplementedError("this device has no programs for many sizes");
  }
  // A program that `devices`, of which this is the first, run together. Unimplemented where they can't.
  virtual absl::StatusOr<std::unique_ptr<JointExecutable>> LoadJoint(const Program& program,
                                                                     absl::Span<Device* const> devices) {
    return absl::UnimplementedError("these devices run no program together");
  }

  // Computes the product, in memory that this process reads and writes, and returns true; or false, and nothing done,
  // where it isn't known to be better at products than the host's kernels. An empty one asks that.
  virtual bool Multiply(const MatrixProduct& product) { return false; }
  // Likewise; without a result, whether it would.
  virtual bool Convolve(const Convolution& convolution, const void* a, const void* b, float* c) { return false; }

  // A few milliseconds of work in the background, by which later launches are faster; false where there is none now.
  virtual bool Settle() { return false; }

  virtual MemoryStats memory_stats() const = 0;
  virtual void ResetPeakMemoryStats() = 0;
  // What may be allocated from now on; at first, and at most, the memory size. What is held stays.
  virtual void AllowMemory(int64_t bytes) = 0;
  virtual void EmptyCache() = 0;  // give cached memory back to the system
};

}  // namespace tpu

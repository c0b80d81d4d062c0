// How a Fragment becomes a Program: the seam between jit (which decides when) and the concrete compilers
// (compiler/host, compiler/stablehlo), which are named only by the composition root.
//
// Compile is called on any thread, several at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compiler/fragment.h"
#include "compiler/tuning.h"
#include "runtime/device.h"
#include "runtime/exchange.h"
#include "runtime/polynomial.h"
#include "runtime/program.h"

namespace tpu {

// Programs for many sizes.
enum class Families : uint8_t {
  kNone,
  kOpen,    // that take what they need for each size, however wide their range is
  kPadded,  // that take for each what they need for the largest: for a range that is not wide
};

class CompilerBackend {
 public:
  virtual ~CompilerBackend() = default;
  // A program computing fragment.outputs from fragment.inputs. Nodes without a lowering become calls; Unimplemented,
  // naming the operator, when the backend can't express that either.
  virtual absl::StatusOr<Program> Compile(const Fragment& fragment, const Tuning& tuning = {}) = 0;
  // Tunings that may be faster than `tuning`, which made this program: it with one knob turned. A few, the likeliest
  // first, by what its parts took (`measured`; estimated where that says nothing).
  virtual std::vector<Candidate> Candidates(const Program& program, const Tuning& tuning,
                                            absl::Span<const KernelTime> measured) const {
    return {};
  }
  // One program for all values between those of `points` of the size, or the two, in which `fragments`, one at each
  // point and the largest last, are otherwise the same; or (`places`) of the places where their windows begin, of any
  // two of which each is first at a point where the other is last. For Device::LoadFamily. FailedPrecondition where
  // they are compiled differently.
  virtual Families families() const { return Families::kNone; }
  virtual absl::StatusOr<Program> CompileFamily(absl::Span<const Fragment> fragments,
                                                absl::Span<const SizePoint> points, bool places) {
    return absl::UnimplementedError("this backend writes no programs for many sizes");
  }
  // True when a program may hold calls of host kernels: its devices run those in place, on their own memory.
  virtual bool HoldsCalls() const = 0;
  // True when this call has a lowering, so that no host kernel is needed.
  virtual bool CanLower(const Call& call) const = 0;
  // Of a call whose results' sizes depend on data (it has none yet): their types at their largest, and behind them an
  // i64 for each that says how much of it there is along dim 0, -1 for all. Empty: such a call is a host kernel.
  virtual std::vector<TensorType> Bounds(const Call& call) const { return {}; }
  // True when the backend materialises this call's operands in any case (it is a library call), so that cutting a
  // fragment in front of it costs no fusion.
  virtual bool IsBoundary(const Call& call) const = 0;
  // True when the call's scalar arguments shape its code (an exponent): they are recorded as attributes.
  virtual bool StaticScalars(const std::string& op) const = 0;
  // For devices that run a program together (Device::LoadJoint).
  virtual absl::StatusOr<Program> CompileExchange(const Exchange& exchange) {
    return absl::UnimplementedError("this backend writes no programs for several devices");
  }
  // For the end of a process: what is being compiled on other threads ends soon, as does what is asked for later, with
  // Cancelled. Does nothing where the compiler can't be stopped, or launches still need programs of single operations.
  virtual void Cancel() {}
  // Part of every cache key: the compiler's build and options. Changes whenever the same fragment may compile to
  // other bytes.
  virtual std::string Fingerprint() const = 0;
};

}  // namespace tpu

// The table of lowerings: what each ATen overload means in primitives. One function an overload, in its family's file;
// each family registers its own from RegisterAll (registry.cc).
//
// The lower-aten pass and the backends' CanLower ask it. Built on first use, read-only after: any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/aten/call.h"
#include "compiler/operators.h"

namespace mlir {
class RewriterBase;
}
namespace tpu {
struct Call;
}

namespace tpu::aten {

using Lowering = std::function<Result(AtenCall&)>;

enum Flags : unsigned {
  kNone = 0,
  // Scalar arguments decide structure: the dispatcher records their values as attributes.
  kStaticScalars = 1,
  // Moves elements only, so complex and opaque element types are welcome.
  kAnyElement = 2,
  // Its lowering is that of calls with complex numbers, too.
  kComplexToo = 128,
  // The backend calls a library for it: its operands are materialised in any case.
  kLibraryCall = 4,
  // Where host kernels run in place, its own is better than its lowering: the call stays one.
  kHostKernelFirst = 8,
  // ... unless a tuning asks for its lowering, and the device has all primitives that it consists of.
  kTunable = 64,
  // Multiplies matrices: PyTorch's precision of f32 products is recorded with it.
  kProducts = 16,
  // The results' sizes depend on data: they are made at their largest, and behind them comes what there is (Bounds).
  kBounds = 32,
};

struct Entry {
  Lowering lowering;
  unsigned flags = kNone;
  Lowering complex = nullptr;  // of calls with complex numbers, but for kAnyElement and kComplexToo
};

class Registry {
 public:
  static const Registry& Get();

  void Add(std::string_view name, Lowering lowering, unsigned flags = kNone) {
    table_[std::string(name)] = Entry{std::move(lowering), flags};
  }
  void Add(std::initializer_list<std::string_view> names, const Lowering& lowering, unsigned flags = kNone) {
    for (std::string_view name : names) Add(name, lowering, flags);
  }
  // Of calls with complex numbers, beside the entry of that name.
  void AddComplex(std::string_view name, Lowering lowering) { table_[std::string(name)].complex = std::move(lowering); }
  // By overload; an in-place overload ("aten::relu_") finds its functional one.
  const Entry* Find(std::string_view name) const;
  const absl::flat_hash_map<std::string, Entry>& table() const { return table_; }

 private:
  absl::flat_hash_map<std::string, Entry> table_;
};

// Replaces `op` by primitives; failure (with nothing replaced) when it has no lowering or its lowering declines.
// host_kernels: CompilerBackend::HoldsCalls. `tuned`: calls that are tunable are lowered, to primitives of which it
// accepts each.
using Accepts = std::function<bool(mlir::Operation*)>;
mlir::LogicalResult Lower(ir::AtenOp op, mlir::RewriterBase& rewriter, bool host_kernels,
                          const Accepts& tuned = nullptr);

// Exactly whether Lower will succeed for calls of this signature: it is tried on a scratch module.
bool CanLower(const Call& call, bool host_kernels);
// CompilerBackend::Bounds.
std::vector<TensorType> Bounds(const Call& call, bool host_kernels);
bool StaticScalars(std::string_view op);
bool IsTunable(std::string_view op);
// Cutting a fragment in front of it costs no fusion: a library call, or an operator without a lowering.
bool IsBoundary(std::string_view op);

}  // namespace tpu::aten

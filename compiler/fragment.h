// A Fragment: recorded ATen calls with external inputs, and the results that are still wanted.
//
// Canonical: the same operators on the same kinds of tensors give equal Fragments and the same StableKey, whatever the
// Python behind them; values of scalars are inputs and never part of it. Made by jit's window, read by the compiler
// backends on any thread; immutable once made. No torch: operators are known by name ("aten::add.Tensor").
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "runtime/tensor_type.h"

namespace tpu {

// A non-tensor argument that is part of what the operator means (dims, flags, dtypes): part of the key.
using Attribute = std::variant<std::monostate, bool, int64_t, double, DType, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<bool>>;

// One schema argument of a recorded call.
struct CallArgument {
  enum class Kind : uint8_t {
    kAttribute,   // `attribute` (monostate: None)
    kTensor,      // operand number `first`
    kTensorList,  // `count` entries from operand `first` on; absent[i] marks a None entry, which takes no operand
    kScalar,      // operand number `first`, a number that is an input of the fragment
    kScalarList,  // operands first .. first+count-1, likewise
  };
  Kind kind = Kind::kAttribute;
  int first = 0;
  int count = 0;
  std::vector<bool> absent;
  Attribute attribute;
  friend bool operator==(const CallArgument&, const CallArgument&) = default;
};

// What products of f32 may be rounded to inside: torch.set_float32_matmul_precision.
enum class Precision : uint8_t { kHighest, kHigh, kMedium };

// What an operand is. A scalar has no dims and one of i1, i64, f64, c128.
struct OperandType {
  TensorType type;
  bool is_scalar = false;
  friend bool operator==(const OperandType&, const OperandType&) = default;
};

// An operator applied to kinds of operands, with its results as PyTorch's own shape inference gave them. Interned by
// the dispatcher: one object for each distinct signature, compared by address, for as long as anybody holds it.
//
// Three operators are the dispatcher's own, for strided storage:
//   "tpu::view"   (src) {sizes, strides, offset, dtype}: reads a strided window of src's flat row-major elements;
//                 when `dtype` differs from src's, src's bytes are reinterpreted first (offset and strides are in
//                 elements of the new dtype).
//   "tpu::update" (base, src) {sizes, strides, offset}: base's flat elements with a strided window replaced by src;
//                 result type = base's (src's bytes are reinterpreted if its dtype differs, in units of src's dtype).
//   "tpu::copy"   (src): src, broadcast to the result's dims and converted to its dtype as Tensor.copy_ does.
struct Call {
  std::string op;
  std::vector<CallArgument> arguments;  // in schema order
  std::vector<OperandType> operands;
  std::vector<TensorType> results;
  // The same, alive as long as the process: what recorded results point to.
  std::vector<const TensorType*> value_types;
  // at::result_type of the operands: what arithmetic is done in where the operator promotes.
  DType promoted = DType::kFloat32;
  // Of the products in it. The embedded device is always at full f32.
  Precision precision = Precision::kHighest;
  // CompilerBackend::IsBoundary of this call, StructureHash, and how large its results are.
  bool boundary = false;
  bool is_view = false;  // "tpu::view"
  // Best computed where it is read, so it stays with the next call: a view, or what widens bytes.
  bool held = false;
  uint64_t structure_hash = 0;
  int64_t result_bytes = 0;
  // At tier 0 too it runs as a program, of its own: the device runs no host kernels in place.
  bool needs_program = false;
  // No program can hold it: it is a fragment of its own.
  bool alone = false;
  // The dispatcher's own record (how to run this as a host kernel); opaque here, not part of equality or key.
  std::shared_ptr<const void> host_kernel;

  std::string ToString() const;    // one line for people: op(f32[8,8], scalar, dim=1) -> f32[8,8]
  uint64_t StructureHash() const;  // of everything but the numbers that may be sizes
};
using CallRef = std::shared_ptr<const Call>;
size_t NumSizes(const Call& call);  // how many of Fragment::Sizes are a node's

// A reference to a value inside a fragment: results are numbered over all nodes from 0; inputs are ~0, ~1, ...
using ValueId = int32_t;
constexpr bool IsInput(ValueId v) { return v < 0; }
constexpr int InputIndex(ValueId v) { return ~v; }
constexpr ValueId InputId(int index) { return ~index; }

struct Node {
  CallRef call;
  uint32_t operands_begin = 0;  // into Fragment::operands, call->operands.size() of them
  uint32_t results_begin = 0;   // number of the first result
};

struct Fragment {
  std::vector<Node> nodes;
  std::vector<ValueId> operands;
  std::vector<OperandType> inputs;
  std::vector<ValueId> outputs;  // wanted results in increasing order, each once
  uint32_t num_results = 0;

  const TensorType& TypeOf(ValueId v) const;
  absl::Span<const ValueId> OperandsOf(const Node& node) const {
    return absl::MakeConstSpan(operands).subspan(node.operands_begin, node.call->operands.size());
  }
  // Where the operands of the first `count` nodes end.
  size_t OperandsEnd(size_t count) const {
    return count < nodes.size() ? nodes[count].operands_begin : operands.size();
  }
  std::string Summary() const;  // its first and last operators, for people
  std::string ToString() const;
  // Content hash, equal in every process: 32 hex digits.
  std::string StableKey() const;

  // Every number that may be a size: dims of tensors, and numbers among the arguments unless they, and all that stand
  // in a list with them, are so small that they tell a dimension or a choice. Fragments of one StructureKey have them
  // in the same places.
  std::vector<int64_t> Sizes() const;
  // Of everything else.
  std::string StructureKey() const;
  // The same with other numbers in these places, on calls of its own.
  Fragment WithSizes(absl::Span<const int64_t> sizes) const;
};

}  // namespace tpu

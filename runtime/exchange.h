// What the ranks of a group do together, as plain data: the verbs, and a collective as a program that the ranks'
// devices run at once, each on its own values.
//
// collectives/ says what is to be run, compiler/stablehlo writes the program, a Device loads it (LoadJoint). Plain
// values; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/program.h"
#include "runtime/tensor_type.h"

namespace tpu {

enum class Verb : uint8_t {
  kBroadcast,      // inputs: root's one; outputs: one on the others
  kScatter,        // inputs: one a rank, on root; outputs: one
  kGather,         // inputs: one; outputs: one a rank, on root
  kAllGather,      // inputs: one; outputs: one a rank
  kReduceScatter,  // inputs: one a rank; outputs: one
  kAllReduce,      // inputs: one; outputs: one
  kReduce,         // inputs: one; outputs: one on root
  kAllToAll,       // inputs: one a rank; outputs: one a rank
  kBarrier,        // neither
  kSend,           // inputs: one
  kRecv,           // outputs: one
};

enum class ReduceOp : uint8_t { kSum, kAverage, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor, kPremulSum };

constexpr const char* NameOf(Verb verb) {
  constexpr const char* kNames[] = {"broadcast",      "scatter",    "gather", "all_gather",
                                    "reduce_scatter", "all_reduce", "reduce", "all_to_all",
                                    "barrier",        "send",       "recv"};
  return kNames[static_cast<int>(verb)];
}
constexpr const char* NameOf(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"};
  return kNames[static_cast<int>(op)];
}
constexpr bool Reduces(Verb verb) {
  return verb == Verb::kReduceScatter || verb == Verb::kAllReduce || verb == Verb::kReduce;
}

// Each device brings, or gets, a block for every rank; else one.
constexpr bool BringsAll(Verb verb) {
  return verb == Verb::kScatter || verb == Verb::kReduceScatter || verb == Verb::kAllToAll;
}
constexpr bool GetsAll(Verb verb) {
  return verb == Verb::kGather || verb == Verb::kAllGather || verb == Verb::kAllToAll;
}

// Pieces that lie one after the other in a value, row-major; counted in elements.
struct Strip {
  TensorType type;
  int64_t offset = 0;
  std::vector<int64_t> pieces;

  friend bool operator==(const Strip&, const Strip&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Strip& s) {
    return H::combine(std::move(h), s.type, s.offset, s.pieces);
  }
};

// Ranks whose strips are alike run kWhole, from sources to targets. Others bring theirs into blocks of one size each on
// its own (kPack, kUnpack), and only kMove is run together. A block's elements are of the type that travels: sums of
// 16-bit floats stay f32 until they are unpacked.
struct Exchange {
  enum class Stage : uint8_t { kWhole, kPack, kMove, kUnpack };

  Stage stage = Stage::kWhole;
  Verb verb = Verb::kAllReduce;  // kSend: from the first of two devices to the second
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  int32_t ranks = 1;
  int32_t root = 0;
  int64_t block = 0;           // elements of the largest piece of any rank
  std::vector<Strip> sources;  // of kWhole and kPack; none: zeros. For kPremulSum a scalar comes after them
  std::vector<Strip> targets;  // of kWhole and kUnpack

  friend bool operator==(const Exchange&, const Exchange&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Exchange& e) {
    return H::combine(std::move(h), e.stage, e.verb, e.op, e.dtype, e.ranks, e.root, e.block, e.sources, e.targets);
  }
};
using ExchangeCompiler = std::function<absl::StatusOr<Program>(const Exchange&)>;

// The type of kPremulSum's scalar.
constexpr DType ScaleType(DType dtype) {
  const bool half = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  return half || dtype == DType::kFloat32 || dtype == DType::kComplex64 ? DType::kFloat32 : DType::kFloat64;
}

}  // namespace tpu

#include "collectives/collective.h"

#include "absl/strings/str_cat.h"

namespace tpu {
namespace {

// How many inputs and outputs a rank brings.
struct Counts {
  size_t inputs, outputs;
};

Counts Expected(const Collective& c, int rank, int size) {
  const size_t all = static_cast<size_t>(size);
  const bool root = c.peer == rank;
  switch (c.verb) {
    case Verb::kBroadcast:
      return {root ? size_t{1} : 0, root ? 0 : size_t{1}};
    case Verb::kScatter:
      return {root ? all : 0, 1};
    case Verb::kGather:
      return {1, root ? all : 0};
    case Verb::kAllGather:
      return {1, all};
    case Verb::kReduceScatter:
      return {all, 1};
    case Verb::kAllReduce:
      return {1, 1};
    case Verb::kReduce:
      return {1, root ? size_t{1} : 0};
    case Verb::kAllToAll:
      return {all, all};
    case Verb::kBarrier:
      return {0, 0};
    case Verb::kSend:
      return {1, 0};
    case Verb::kRecv:
      return {0, 1};
  }
  return {0, 0};
}

bool SizesAgree(const Collective& c, int rank) {
  if (c.inputs.empty() || c.outputs.empty()) return true;
  const size_t self = static_cast<size_t>(rank);
  const Piece& mine_in = c.inputs.size() > 1 ? c.inputs[self] : c.inputs[0];
  const Piece& mine_out = c.outputs.size() > 1 ? c.outputs[self] : c.outputs[0];
  return mine_in.bytes == mine_out.bytes;
}

absl::Status CheckReduction(const Collective& c) {
  const bool bitwise = c.op == ReduceOp::kBitAnd || c.op == ReduceOp::kBitOr || c.op == ReduceOp::kBitXor;
  const bool ordered = c.op == ReduceOp::kMin || c.op == ReduceOp::kMax;
  const bool scaled = c.op == ReduceOp::kAverage || c.op == ReduceOp::kPremulSum;
  const bool opaque = IsOpaque(c.dtype);
  const bool wrong = opaque || (bitwise && (IsFloat(c.dtype) || IsComplex(c.dtype))) ||
                     (ordered && IsComplex(c.dtype)) || (scaled && c.dtype == DType::kBool);
  if (!wrong) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(c.Describe(), ": ", NameOf(c.op), " is not defined for elements of ",
                                                 opaque ? "this type" : std::string(NameOf(c.dtype))));
}

}  // namespace

std::string Collective::Describe() const {
  if (verb == Verb::kBarrier) return "barrier()";
  const auto elements = [this](const std::vector<Piece>& pieces) {
    int64_t bytes = 0;
    for (const Piece& p : pieces) bytes += p.bytes;
    return absl::StrCat(std::string(NameOf(dtype)), "[", bytes / static_cast<int64_t>(SizeOf(dtype)), "]");
  };
  std::string text = absl::StrCat(NameOf(verb), "(");
  if (Reduces(verb)) absl::StrAppend(&text, NameOf(op), ", ");
  absl::StrAppend(&text, elements(inputs.empty() ? outputs : inputs));
  if (verb == Verb::kBroadcast || verb == Verb::kScatter || verb == Verb::kGather || verb == Verb::kReduce) {
    absl::StrAppend(&text, ", root ", peer);
  }
  if (verb == Verb::kSend) absl::StrAppend(&text, ", to ", peer, ", tag ", tag);
  if (verb == Verb::kRecv) {
    absl::StrAppend(&text, ", from ", peer == kAnyRank ? "any rank" : absl::StrCat(peer), ", tag ", tag);
  }
  return text + ")";
}

absl::Status Check(const Collective& c, int rank, int size) {
  const bool any = c.verb == Verb::kRecv && c.peer == kAnyRank;
  if (!any && (c.peer < 0 || c.peer >= size)) {
    return absl::InvalidArgumentError(
        absl::StrCat(c.Describe(), ": there is no rank ", c.peer, " in a group of ", size));
  }
  if ((c.verb == Verb::kSend || c.verb == Verb::kRecv) && c.peer == rank) {
    return absl::InvalidArgumentError(
        absl::StrCat(c.Describe(), ": rank ", rank, " can't exchange messages with itself"));
  }
  const Counts expected = Expected(c, rank, size);
  if (c.inputs.size() != expected.inputs || c.outputs.size() != expected.outputs) {
    return absl::InvalidArgumentError(absl::StrCat(c.Describe(), ": rank ", rank, " of ", size, " brings ",
                                                   c.inputs.size(), " inputs and ", c.outputs.size(),
                                                   " outputs; it takes ", expected.inputs, " and ", expected.outputs));
  }
  if (!SizesAgree(c, rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat(c.Describe(), ": input and output of rank ", rank, " have different numbers of elements"));
  }
  return Reduces(c.verb) ? CheckReduction(c) : absl::OkStatus();
}

}  // namespace tpu

// Rows side by side: a lane for each of them. Four positions of each are read at once and turned in registers, so that
// the lanes of one position become neighbours; what is written is turned back.
#include <functional>

#include "compiler/host/nest_loops.h"

namespace tpu::host {

using llvm::Value;

// Only rows of one run of the loop that vectors lie along go together.
void NestLoops::EachRowsBeside(const std::function<void()>& body) {
  const size_t lanes = nest_.lane_loop();
  Value* const length = I64(nest_.loops[lanes].size);
  const auto within = [&](Value* run, Value* row) {
    Value* first = b_.CreateSub(row, b_.CreateMul(run, length));
    return b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin,
                                    b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, first, b_.getInt64(0)), length);
  };
  if (lanes == 0) return InnerLoop(begin(), end(), -1, body);
  Value* const last = b_.CreateUDiv(b_.CreateAdd(end(), b_.CreateSub(length, b_.getInt64(1))), length);
  For(b_.CreateUDiv(begin(), length), last, 1, [&](Value* run) {
    Value* rest = run;
    for (size_t i = lanes; i-- > 0;) {
      Value* size = I64(nest_.loops[i].size);
      position_[i] = i == 0 ? rest : b_.CreateURem(rest, size);
      rest = b_.CreateUDiv(rest, size);
    }
    InnerLoop(within(run, begin()), within(run, end()), -1, body);
  });
}

// Vector i has lanes of rows i, 4 + i, 8 + i, .., four positions of each; afterwards it has position i of all rows, in
// order. The same again turns them back. No lane leaves its group of four, which is a register's part of 128 bits.
NestLoops::Turned NestLoops::Turn(const Turned& v) {
  const auto mix = [&](Value* a, Value* b, std::array<int, kTurned> order) {
    llvm::SmallVector<int> lanes;
    for (int group = 0; group < kRowsTurned; group += kTurned) {
      for (int lane : order) lanes.push_back(group + (lane < kTurned ? lane : kRowsTurned + lane - kTurned));
    }
    return b_.CreateShuffleVector(a, b, lanes);
  };
  const auto low = [&](Value* a, Value* b) { return mix(a, b, {0, 4, 1, 5}); };
  const auto high = [&](Value* a, Value* b) { return mix(a, b, {2, 6, 3, 7}); };
  Value *first = low(v[0], v[1]), *second = low(v[2], v[3]), *third = high(v[0], v[1]), *fourth = high(v[2], v[3]);
  return {mix(first, second, {0, 1, 4, 5}), mix(first, second, {2, 3, 6, 7}), mix(third, fourth, {0, 1, 4, 5}),
          mix(third, fourth, {2, 3, 6, 7})};
}

Value* NestLoops::RowOf(int lane, mlir::Type element, Value* pointer, const Expr& index, Value* position) {
  position_.back() = position;
  const int64_t step = LaneStep(index);
  return At(pointer, element,
            step == 0 ? b_.CreateExtractElement(Lanes(index), lane)
                      : b_.CreateAdd(Scalar(index), b_.CreateMul(I64(step), b_.getInt64(lane))));
}

// So many rows at a time, from their first to their last position: what they take of memory is small then, and near.
void NestLoops::EachTurned(const std::function<void(int first, Value* position)>& body) {
  const int64_t size = nest_.loops.back().size, rest = size % kTurned;
  for (int first = 0; first < width_; first += kRowsTurned) {
    For(b_.getInt64(0), b_.getInt64(size - rest), kTurned, [&](Value* position) { body(first, position); });
    if (rest == 0) continue;
    scopes_.emplace_back();
    body(first, b_.getInt64(size - kTurned));  // repeats some
    scopes_.pop_back();
  }
}

void NestLoops::BringRows() {
  for (const auto& [id, buffer] : brought_) {
    const NestNode& node = nest_.nodes[id];
    llvm::Type* all = BufferType(node.type, kRowsTurned);
    EachTurned([&, id = id, buffer = buffer](int first, Value* position) {
      Turned rows;
      for (int i = 0; i < kTurned; ++i) {
        rows[i] = llvm::PoisonValue::get(all);
        for (int group = 0; group < kRowsTurned; group += kTurned) {
          Value* row = RowOf(first + group + i, node.type, pointers_[node.input], node.index, position);
          Value* few = ToBuffer(ops_.Load(node.type, row, kTurned));
          rows[i] = b_.CreateInsertVector(all, rows[i], few, uint64_t(group));
        }
      }
      Turned turned = Turn(rows);
      for (int i = 0; i < kTurned; ++i) {
        b_.CreateAlignedStore(turned[i], LanesAt(buffer, first, all, position, i), llvm::Align(4));
      }
    });
  }
}

Value* NestLoops::LanesAt(Value* buffer, int first, llvm::Type* type, Value* position, int further) {
  position_.back() = b_.CreateAdd(position, b_.getInt64(further));
  return b_.CreateConstInBoundsGEP1_64(type->getScalarType(), InRow(buffer, type->getScalarType()), first);
}

void NestLoops::PutRows(const std::function<bool(const NestOutput&)>& which) {
  const int64_t size = nest_.loops.back().size;
  for (size_t o = 0; o < nest_.outputs.size(); ++o) {
    if (!nest_.outputs[o].full || !which(nest_.outputs[o])) continue;
    const mlir::Type type = nest_.nodes[nest_.outputs[o].node].type;
    Value* pointer = pointers_[nest_.inputs.size() + o];
    if (size < kTurned) {
      llvm::Type* all = BufferType(type, width_);
      llvm::SmallVector<Value*> lanes;
      for (int i = 0; i < size; ++i) {
        Value* at = LanesAt(to_bring_[o], 0, all, b_.getInt64(0), i);
        lanes.push_back(FromBuffer(type, b_.CreateAlignedLoad(all, at, llvm::Align(4))));
      }
      ops_.Store(type, Weave(lanes), RowOf(0, type, pointer, nest_.FullIndex(), b_.getInt64(0)), false);
      continue;
    }
    llvm::Type *all = BufferType(type, kRowsTurned), *few = BufferType(type, kTurned);
    EachTurned([&](int first, Value* position) {
      Turned lanes;
      for (int i = 0; i < kTurned; ++i) {
        lanes[i] = b_.CreateAlignedLoad(all, LanesAt(to_bring_[o], first, all, position, i), llvm::Align(4));
      }
      Turned rows = Turn(lanes);
      for (int group = 0; group < kRowsTurned; group += kTurned) {
        for (int i = 0; i < kTurned; ++i) {
          Value* row = RowOf(first + group + i, type, pointer, nest_.FullIndex(), position);
          ops_.Store(type, FromBuffer(type, b_.CreateExtractVector(few, rows[i], uint64_t(group))), row, false);
        }
      }
    });
  }
}

}  // namespace tpu::host

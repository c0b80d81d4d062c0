// The loops of a nest's kernel, as code: its items, the innermost loop by vectors, the reduced ones, and what is
// computed before them.
//
// Base of the emitter (kernel_emitter.cc), which chooses the widths and what the loops hold. One for each kernel, on
// one thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "compiler/host/nest_values.h"
#include "compiler/tuning.h"

namespace tpu::host {

class NestLoops : protected NestValues {
 protected:
  NestLoops(LoopNest nest, llvm::Module& module, const Tuning& tuning, KernelNumbers& numbers)
      : NestValues(std::move(nest), module, tuning.prefetch, numbers), tile_(tuning.tile) {}

  std::vector<int> WidthsFor(int64_t count) const;
  void InnerLoop(Value* begin, Value* end, int64_t count, const std::function<void()>& body);
  void ReducedLoops(size_t from, const std::function<void()>& innermost);
  void Hoist(llvm::ArrayRef<int> roots);
  // Runs `body` for the rows of the call, by vectors of them.
  void EachRowsBeside(const std::function<void()>& body);
  // Rows side by side, from memory to buffers in which the lanes of one position are neighbours, and back.
  void BringRows();
  void PutRows(const std::function<bool(const NestOutput&)>& which);
  void EachItem(Value* blocks, const Body& body);
  // Of the loop along which vectors lie, as far as it is known: -1 where it differs among the sizes that the code
  // serves.
  int64_t InnerCount() const {
    const Loop& lanes = nest_.loops[nest_.lane_loop()];
    return lanes.most ? -1 : lanes.size;
  }
  int64_t ItemsOf(size_t loop) const {
    return static_cast<int>(loop) == tiled_ ? (nest_.loops[loop].size + tile_ - 1) / tile_ : nest_.loops[loop].size;
  }

  using Turned = std::array<Value*, kTurned>;
  void EachTurned(const std::function<void(int first, Value* position)>& body);
  Value* LanesAt(Value* buffer, int first, llvm::Type* type, Value* position, int further);
  Turned Turn(const Turned& vectors);
  Value* RowOf(int lane, mlir::Type element, Value* pointer, const Expr& index, Value* position);

  const int64_t tile_;
  int max_width_ = 1;
  int tiled_ = -1;  // a kept loop of which an item covers tile_ positions
};

}  // namespace tpu::host

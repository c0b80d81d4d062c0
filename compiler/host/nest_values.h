// The values of a loop nest at one position, as code: loads, primitives, indices, and what reductions have accumulated.
//
// Base of the emitter (kernel_emitter.cc), which writes the loops: it sets the position, the vector width and the pass,
// and says where rows and accumulators are kept. One for each kernel, on one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "compiler/host/kernel_frame.h"
#include "compiler/host/loop_nest.h"
#include "llvm/ADT/DenseMap.h"

namespace tpu::host {

// Of rows side by side so many positions of so many rows are turned in registers together.
constexpr int kTurned = 4, kRowsTurned = 8;

class NestValues : protected KernelFrame {
 protected:
  using Value = llvm::Value;

  NestValues(LoopNest nest, llvm::Module& module, int64_t prefetch, KernelNumbers& numbers);

  // --- reductions ---
  // How one is done: the types of its operand and of its accumulator, and whether it carries an index.
  struct Reduction {
    ElementOps::Fold fold = ElementOps::Fold::kSum;
    bool arg = false;
    mlir::Type operand, element;
  };
  // What it has accumulated: the value and, for arg_reduce, where.
  struct Accumulator {
    Value* value = nullptr;
    Value* index = nullptr;
  };
  struct Slots {  // where an accumulator lives between iterations
    Value* value = nullptr;
    Value* index = nullptr;
  };
  Reduction ReductionOf(mlir::Operation* op) const;
  Accumulator Here(const Reduction& r, int node);  // of the present position alone
  Accumulator Start(const Reduction& r, int width);
  // later: b comes after all that a has seen.
  Accumulator Merge(const Reduction& r, const Accumulator& a, const Accumulator& b, bool later = false);
  Accumulator Horizontal(const Reduction& r, Accumulator a);
  Accumulator LoadSlots(const Reduction& r, const Slots& slots, int width);
  void StoreSlots(const Slots& slots, const Accumulator& a);
  Value* Finish(int node, const Accumulator& a) {
    const NestNode& reduce = nest_.nodes[node];
    const Reduction r = ReductionOf(reduce.op);
    if (r.arg) return b_.CreateZExt(a.index, a.index->getType()->getWithNewBitWidth(64));
    return ops_.Round(reduce.type, ops_.Convert(r.element, r.operand, a.value));
  }
  Value* ReducedPosition();
  llvm::Type* IndexType(int width);  // of what arg_reduce carries
  int64_t ReducedMost() const {
    int64_t most = 1;
    for (const Loop& loop : nest_.loops) most *= loop.reduced ? loop.most.value_or(loop.size) : 1;
    return most;
  }

  // --- values ---
  // first, first + 1, ..: so many lanes.
  Value* Ascending(Value* first, int count);
  // KernelFrame's, with a scope for the body.
  void For(Value* begin, Value* end, int64_t step, const Body& body, llvm::function_ref<void()> enter = nullptr);
  Value* Get(int node);          // at the present position, scalar where it is the same for all lanes
  Value* GetLanes(int node);     // always of the present width
  Value* Scalar(const Expr& e);  // of the first lane
  Value* Lanes(const Expr& e);   // i64 lanes
  Value* SymbolValue(int symbol, bool lanes);
  Value* Splat(Value* v, int width) {
    return width == 1 || v->getType()->isVectorTy() ? v : b_.CreateVectorSplat(width, v);
  }
  int64_t LaneStep(const Expr& e) const;  // from one lane to the next; 0 where there is none or they differ
  bool IsUnit(const Expr& e) const { return LaneStep(e) == 1; }
  // The clamped number but for whose bounds the lanes were neighbours; -1 where there is none.
  int ClampOfRun(const NestNode& load) const;
  bool IsGather(const NestNode& load) const;  // lane by lane
  // Of rows side by side: what each lane reads of one is contiguous, and may be brought to a row buffer.
  bool IsBrought(const NestNode& load) const;
  bool IsVector(uint64_t loops) const { return width_ > 1 && nest_.IsVector(loops); }
  void StoreOutputs(const std::function<bool(const NestOutput&)>& which);
  void StoreOutput(size_t output, Value* value);
  // Elements in a row buffer are in registers' form, of 32 bits at least: narrower ones are turned slowly.
  llvm::Type* BufferType(mlir::Type element, int width);
  Value* ToBuffer(Value* value);
  Value* FromBuffer(mlir::Type element, Value* value);
  // Where the present position's lanes are in a row buffer of so wide elements.
  Value* InRow(Value* buffer, llvm::Type* element);
  Value* Weave(llvm::ArrayRef<Value*> values);  // lane by lane, the first lane of each first

  LoopNest nest_;
  int64_t prefetch_;  // bytes, see Tuning
  int width_ = 1;
  int pass_ = 0;
  std::vector<Value*> position_;  // of each loop; of the innermost, the first lane
  struct Scope {                  // what is known where the code is now
    llvm::DenseMap<int, Value*> nodes;
    std::map<std::pair<int, bool>, Value*> symbols;
  };
  std::vector<Scope> scopes_;
  llvm::DenseMap<int, Value*> scratch_;  // node -> row buffer
  // Of rows side by side: of loads, and of each output.
  llvm::DenseMap<int, Value*> brought_;
  std::vector<Value*> to_bring_;
  llvm::DenseMap<int, Slots> accumulators_;  // block kernels: one element for each position of the block
  Value* block_begin_ = nullptr;
  std::vector<bool> non_temporal_;  // of each output: whether it is stored around the cache
  std::vector<int64_t> begins_;     // of each input: the first element that is read; loads count from there

 private:
  llvm::DenseMap<int, int> first_pass_;  // of the loads: the pass that brings them to the cache

  Value* Compute(int node);
  // Whether `half` holds the node's float value as it is. Looks at no more than `depth` operations behind it.
  bool IsRounded(int node, mlir::FloatType half, int depth) const;
  Value* Choose(const NestNode& node, Value* at, size_t begin, size_t end);
  Value* LoadAt(int id);
  Value* LoadEach(const NestNode& node);  // lane by lane
  bool IsNearlyRun(const NestNode& load) const;
  Value* LoadNearlyRun(const NestNode& node);
  Value* LoadEverySecond(const NestNode& node);
  Value* LoadClamped(const NestNode& node, int clamp);
  Value* NextBytes(const NestNode& load);
  void Prefetch(int id, Value* at);
  Value* Random(const NestNode& node);
  Value* ComputeSymbol(int symbol, bool lanes);
};

}  // namespace tpu::host

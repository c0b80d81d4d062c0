// The one model of every generated kernel: a loop nest over an iteration space (kept and reduced loops) and the values
// computed in it, each at an index that is linear in the loops.
//
// AnalyzeLoopNest asks whether a set of primitives is one nest. The fuse pass asks it before it joins operations; the
// kernel emitter walks its nodes. Views (transpose, slice, broadcast, reshape, pad, concat, take, ...) never become
// nodes: they rewrite the index at which their operand is read. A reshape that is not linear in the present loops asks
// for a loop to be split; analysis then starts again with the finer loops.
// Plain values over MLIR operations that must stay alive; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Operation.h"

namespace tpu::host {

// constant + sum of coefficient * symbol; symbols sorted, coefficients never 0.
struct Expr {
  int64_t constant = 0;
  llvm::SmallVector<std::pair<int, int64_t>, 4> terms;
  friend bool operator==(const Expr& a, const Expr& b) { return a.constant == b.constant && a.terms == b.terms; }
};
Expr operator+(const Expr& a, const Expr& b);
Expr operator*(const Expr& a, int64_t factor);
Expr Term(int symbol, int64_t size);  // the symbol; 0 where it has one value only

// What a number or a value changes with.
struct Dependence {
  uint64_t loops = 0;    // bit set of the loops
  int phase = 0;         // how many passes over the reduced loops come before it can be known
  bool reduced = false;  // on a reduced loop
  bool checked = false;  // on what the kernel may find wrong: an index, a divisor, a requirement
  void Include(const Dependence& other);
};

// A number in [0, size): a loop's position, or one derived from others.
struct Symbol : Dependence {
  enum class Kind { kLoop, kDiv, kMod, kClamp, kNode };
  Kind kind = Kind::kLoop;
  int64_t size = 0;
  Expr of;  // kDiv, kMod: of / a, of % a; kClamp: min(max(of, 0), size - 1)
  int64_t a = 0;
  int node = -1;  // kNode: an i64 node, checked against `a` but where that is 0: its elements are known to be in range
};

struct Loop {
  int64_t size = 0;
  bool reduced = false;
  // Set for code that serves several sizes: this loop's differs among them, and is at most so much.
  std::optional<int64_t> most = std::nullopt;
};

struct NestNode : Dependence {
  enum class Kind {
    kLoad,      // element `index` of input `input`
    kConstant,  // splat constant `value`
    kIndex,     // `index` as a number of the node's type
    kInRange,   // i1: lo <= index < hi
    kAnd,       // i1: of its operands
    kSelect,    // operands: i1, on_true, on_false
    kChoose,    // the operand in whose part `index` lies, alone; the same for all lanes
    kOp,        // elementwise operation `op`
    kRandom,    // word `index` of the Philox stream of operands {seed, offset}
    kReduce,    // reduction `op` of its operand over the reduced loops
  };
  Kind kind = Kind::kLoad;
  mlir::Operation* op = nullptr;
  mlir::Type type;  // element type
  Expr index;
  int input = -1;
  int64_t lo = 0, hi = 0;
  mlir::Attribute value;
  llvm::SmallVector<int, 3> operands;
  llvm::SmallVector<int64_t, 0> starts;  // kChoose: where each operand's part begins
  double share = 1;                      // of the positions at which it is computed: less within a part
};

struct NestOutput {
  int node = -1;
  bool full = false;  // one element for each position of the whole space, else for each position of the kept loops
};

struct LoopNest {
  std::vector<Loop> loops;
  std::vector<Symbol> symbols;  // the first loops.size() are the loops
  std::vector<NestNode> nodes;  // operands before users
  std::vector<mlir::Value> inputs;
  std::vector<NestOutput> outputs;
  std::vector<int> reduces;
  int phases = 0;  // passes over the reduced loops that reductions need
  bool has_reduce = false;
  bool woven = false;  // the innermost loop is short, and vectors lie along the one around it

  int64_t kept_count() const;
  int64_t reduced_count() const;
  int64_t full_count() const { return kept_count() * reduced_count(); }
  Expr FullIndex() const;
  Expr RowIndex() const;
  // True when the innermost loop is reduced (or there is nothing to reduce it against).
  bool inner_reduced() const { return !loops.empty() && loops.back().reduced; }
  // Rows side by side: each lane reduces one of its own.
  bool beside() const { return woven && inner_reduced(); }
  // The loop along which vectors lie: the innermost one, but where that is woven.
  size_t lane_loop() const { return loops.size() - (woven ? 2 : 1); }
  bool IsVector(uint64_t uses) const { return !loops.empty() && (uses >> lane_loop()) & 1; }
  bool IsInnermost(uint64_t uses) const { return !loops.empty() && (uses >> (loops.size() - 1)) & 1; }
  // Estimated nanoseconds on one core.
  double Cost() const;
  // The nodes with code: what several parts of a kChoose need is written in each.
  double WrittenNodes() const;
};

// Operations for which `inside` is false are inputs; nullopt when the rest is not one nest whose outputs are `outputs`.
std::optional<LoopNest> AnalyzeLoopNest(llvm::function_ref<bool(mlir::Operation*)> inside,
                                        llvm::ArrayRef<mlir::Value> outputs);

// Strides, in elements of the returned source, with which `value`'s dims walk over an earlier value: what a library
// call can read in place of a copy. nullopt when views up to the source are not strided.
struct StridedSource {
  mlir::Value source;
  int64_t offset = 0;
  llvm::SmallVector<int64_t> strides;
};
std::optional<StridedSource> FindStridedSource(mlir::Value value);

// What a value holds that is known when code is written; null of any other.
mlir::DenseElementsAttr KnownElements(mlir::Value value);

// A cheap rename of positions (or a generated value) that every reader computes for itself.
bool IsFreeOp(mlir::Operation* op);
// What a generated kernel can compute at all.
bool IsNestOp(mlir::Operation* op);
// Costs much more than an addition.
bool IsHeavyOp(mlir::Operation* op);
// Is wrong for some operands, which its kernel reports.
bool ChecksOperands(mlir::Operation* op);

}  // namespace tpu::host

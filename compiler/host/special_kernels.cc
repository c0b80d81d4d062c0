#include "compiler/host/special_kernels.h"

#include <algorithm>
#include <functional>

#include "compiler/host/kernel_frame.h"
#include "compiler/ir/dialect.h"
#include "compiler/ir/types.h"

namespace tpu::host {
namespace {

using ir::ElementOf, ir::ShapeOf;
using llvm::Value;
using Shape = llvm::ArrayRef<int64_t>;

constexpr int64_t kColumns = 64;  // of a slab that one item updates
// Sums of taken rows: bytes of the result, which one item makes, and how many items, of which each looks through a list
// that isn't sorted; how many rows are asked for ahead, and bytes of each.
constexpr int64_t kBlockBytes = 32 << 10, kMostBlocks = 32, kSortedBlockBytes = 8 << 10, kMostSortedBlocks = 1024;
constexpr int64_t kAhead = 16, kMostAhead = 1024;

mlir::Attribute SplatOf(mlir::Value v) {
  auto constant = v.getDefiningOp<ir::ConstantOp>();
  if (!constant) return nullptr;
  auto value = mlir::cast<mlir::ElementsAttr>(constant->getAttr("value"));
  return value.isSplat() ? mlir::Attribute(value) : nullptr;
}

class Special : private KernelFrame {
 public:
  Special(mlir::Operation* op, llvm::Module& module, const Tuning& tuning, size_t inputs, KernelNumbers& numbers)
      : KernelFrame(module, inputs + op->getNumResults(), numbers), op_(op), tuning_(tuning), inputs_(inputs) {}

  KernelShape Scatter();      // scatter: [outer, dim, inner] of positions
  KernelShape ScatterRows();  // scatter_rows
  KernelShape SumTaken();
  KernelShape Scan();
  KernelShape Sort();

 private:
  Value* LoadOne(mlir::Value v, size_t pointer, Value* index) {
    return ops_.Load(ElementOf(v), At(pointers_[pointer], ElementOf(v), index), 1);
  }
  // result[from .. from + count) = the base's, if that is a splat.
  void FillBase(Value* from, Value* count);
  void Fill(Value* from, Value* count, Value* element);
  // Of two numbers the greater or lesser one, of equal ones (zeros, whose signs differ) the later: x. NaN from the
  // first on.
  Value* LastExtremum(bool max, Value* total, Value* x);
  Value* CountLess(Value* list, int64_t count, Value* than);
  void Find(Value* list, int64_t count, Value* first, Value* size, const Body& body);
  // The end of the elements equal to `value` that the list has from `from` on.
  Value* RunEnd(Value* list, int64_t count, Value* from, Value* value);
  // Asks memory for row from[i] of x.
  void PrefetchRow(Value* i, int64_t width);
  // Row from[i] of x, where it begins, and its weight: may be null.
  std::pair<Value*, Value*> TakenRow(Value* i);
  // result[target .. target + width) += weight * x[source .. source + width); weight: may be null.
  void AddRow(Value* target, Value* source, Value* weight, int64_t width);
  Value* Weighed(Value* at, Value* weight, int lanes);  // the elements of x
  // result[target] = the sum of the taken rows [from, to).
  void SumRows(Value* target, Value* from, Value* to);
  void Update(ir::ScatterKind kind, Value* at, Value* update);

  mlir::Operation* op_;
  const Tuning tuning_;
  const size_t inputs_;
};

void Special::FillBase(Value* from, Value* count) {
  mlir::Value base = op_->getOperand(0);
  if (!BaseOf(op_)) Fill(from, count, ops_.Constant(SplatOf(base), ElementOf(base)));
}

void Special::Fill(Value* from, Value* count, Value* filling) {
  mlir::Type element = ElementOf(op_->getResult(0));
  Value* result = pointers_[inputs_];
  Value* end = b_.CreateAdd(from, count);
  Value* vectors = b_.CreateSub(end, b_.CreateAnd(count, I64(15)));
  auto fill = [&](int width) {
    return [&, width](Value* at) {
      Value* v = width > 1 ? b_.CreateVectorSplat(width, filling) : filling;
      ops_.Store(element, v, At(result, element, at), false);
    };
  };
  For(from, vectors, 16, fill(16));
  For(vectors, end, 1, fill(1));
}

void Special::Update(ir::ScatterKind kind, Value* at, Value* update) {
  mlir::Type element = ElementOf(op_->getResult(0));
  Value* pointer = At(pointers_[inputs_], element, at);
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(update->getType());
  if (kind != ir::ScatterKind::set) {
    Value* old = ops_.Load(element, pointer, vector ? static_cast<int>(vector->getNumElements()) : 1);
    ElementOps::Fold fold = kind == ir::ScatterKind::add   ? ElementOps::Fold::kSum
                            : kind == ir::ScatterKind::mul ? ElementOps::Fold::kProd
                            : kind == ir::ScatterKind::max ? ElementOps::Fold::kMax
                                                           : ElementOps::Fold::kMin;
    update = ops_.Round(element, ops_.Combine(fold, element, old, update));
  }
  ops_.Store(element, update, pointer, false);
}

KernelShape Special::Scatter() {
  auto op = mlir::cast<ir::ScatterOp>(op_);
  int64_t dim = op.getDim();
  Shape base = ShapeOf(op.getBase()), at = ShapeOf(op.getIndices());
  int64_t slab = NumElements(base.drop_front(dim));
  KernelShape shape;
  shape.rows = NumElements(base.take_front(dim));
  double updates = static_cast<double>(NumElements(at)) / static_cast<double>(std::max<int64_t>(shape.rows, 1));
  const auto filled = static_cast<double>(BaseOf(op) ? 0 : slab);
  shape.grain = GrainFor(tuning_, filled * 0.2 + updates * 2, shape.rows);
  llvm::SmallVector<int64_t> base_strides(base.size(), 1), strides(base.size(), 1);
  for (size_t d = base.size(); d-- > 1;) {
    base_strides[d - 1] = base_strides[d] * base[d];
    strides[d - 1] = strides[d] * at[d];
  }
  For(begin(), end(), 1, [&](Value* outer) {
    FillBase(b_.CreateMul(outer, I64(slab)), I64(slab));
    // The same outer position among the updates, where there is one.
    Value *from = I64(0), *rest = outer, *inside = b_.getTrue();
    for (int64_t d = dim; d-- > 0;) {
      Value* position = b_.CreateURem(rest, I64(base[d]));
      rest = b_.CreateUDiv(rest, I64(base[d]));
      inside = b_.CreateAnd(inside, b_.CreateICmpSLT(position, I64(at[d])));
      from = b_.CreateAdd(from, b_.CreateMul(position, I64(strides[d])));
    }
    std::function<void(size_t, Value*, Value*)> walk = [&](size_t d, Value* source, Value* target) {
      if (d == at.size()) {
        Value* index = Checked(LoadOne(op.getIndices(), 0, source), base[dim]);
        target = b_.CreateAdd(target, b_.CreateMul(index, I64(base_strides[dim])));
        Update(op.getKind(), target, LoadOne(op.getUpdates(), 1, source));
        return;
      }
      For(I64(0), I64(at[d]), 1, [&](Value* i) {
        Value* to =
            static_cast<int64_t>(d) == dim ? target : b_.CreateAdd(target, b_.CreateMul(i, I64(base_strides[d])));
        walk(d + 1, b_.CreateAdd(source, b_.CreateMul(i, I64(strides[d]))), to);
      });
    };
    Value* once = b_.CreateSelect(inside, I64(1), I64(0));
    For(I64(0), once, 1, [&](Value*) { walk(dim, from, b_.CreateMul(outer, I64(slab))); });
  });
  Finish(false);
  return shape;
}

KernelShape Special::ScatterRows() {
  auto op = mlir::cast<ir::ScatterRowsOp>(op_);
  int64_t dim = op.getDim(), count = ShapeOf(op.getIndices())[0];
  Shape base = ShapeOf(op.getBase());
  int64_t rows = base[dim], inner = NumElements(base.drop_front(dim + 1)), outer = NumElements(base.take_front(dim));
  // Columns of the slab [rows, inner] are independent.
  int64_t block = std::min(inner, kColumns), blocks = (inner + block - 1) / std::max<int64_t>(block, 1);
  KernelShape shape;
  shape.rows = outer * blocks;
  shape.grain = GrainFor(tuning_, static_cast<double>(((BaseOf(op) ? 0 : rows) + count * 2) * block) * 0.2, shape.rows);
  mlir::Type element = ElementOf(op.getUpdates());
  For(begin(), end(), 1, [&](Value* item) {
    Value* o = b_.CreateUDiv(item, I64(blocks));
    Value* from = b_.CreateMul(b_.CreateURem(item, I64(blocks)), I64(block));
    Value* to = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateAdd(from, I64(block)), I64(inner));
    Value* width = b_.CreateSub(to, from);
    Value* slab = b_.CreateMul(o, I64(rows * inner));
    if (blocks == 1) {
      FillBase(slab, I64(rows * inner));
    } else if (!BaseOf(op_)) {
      For(I64(0), I64(rows), 1,
          [&](Value* row) { FillBase(b_.CreateAdd(slab, b_.CreateAdd(b_.CreateMul(row, I64(inner)), from)), width); });
    }
    Value* updates = b_.CreateMul(o, I64(count * inner));
    For(I64(0), I64(count), 1, [&](Value* i) {
      Value* row = Checked(LoadOne(op.getIndices(), 0, i), rows);
      Value* target = b_.CreateAdd(slab, b_.CreateMul(row, I64(inner)));
      Value* source = b_.CreateAdd(updates, b_.CreateMul(i, I64(inner)));
      Value* vectors = b_.CreateSub(to, b_.CreateAnd(width, I64(15)));
      auto update = [&](int lanes) {
        return [&, lanes](Value* c) {
          Value* v = ops_.Load(element, At(pointers_[1], element, b_.CreateAdd(source, c)), lanes);
          Update(op.getKind(), b_.CreateAdd(target, c), v);
        };
      };
      For(from, vectors, 16, update(16));
      For(vectors, to, 1, update(1));
    });
  });
  Finish(false);
  return shape;
}

void Special::PrefetchRow(Value* i, int64_t width) {
  mlir::Type element = ElementOf(op_->getOperand(0));
  const int64_t bytes = width * ElementOps::BytesOf(element);
  Value* row = b_.CreateMul(LoadOne(op_->getOperand(1), 1, i), I64(bytes));  // wherever that is
  for (int64_t line = 0; line < std::min(bytes, kMostAhead); line += 64) {
    Value* ahead = b_.CreatePtrAdd(pointers_[0], b_.CreateAdd(row, b_.getInt64(line)));
    b_.CreateIntrinsic(
        llvm::Intrinsic::prefetch, {ahead->getType()},
        {ahead, b_.getInt32(/*read*/ 0), b_.getInt32(/*keep in all caches*/ 3), b_.getInt32(/*data*/ 1)});
  }
}

Value* Special::Weighed(Value* at, Value* weight, int lanes) {
  mlir::Type from = ElementOf(op_->getOperand(0)), to = ElementOf(op_->getResult(0));
  Value* x = ops_.Convert(from, to, ops_.Load(from, At(pointers_[0], from, at), lanes));
  if (weight == nullptr) return x;
  Value* factor = lanes > 1 ? b_.CreateVectorSplat(lanes, weight) : weight;
  return ops_.Round(to, ops_.Combine(ElementOps::Fold::kProd, to, x, factor));
}

void Special::AddRow(Value* target, Value* source, Value* weight, int64_t width) {
  mlir::Type to = ElementOf(op_->getResult(0));
  auto add = [&](int lanes) {
    return [&, lanes](Value* c) {
      Value* x = Weighed(b_.CreateAdd(source, c), weight, lanes);
      Value* at = At(pointers_[inputs_], to, b_.CreateAdd(target, c));
      Value* sum = ops_.Combine(ElementOps::Fold::kSum, to, ops_.Load(to, at, lanes), x);
      ops_.Store(to, ops_.Round(to, sum), at, false);
    };
  };
  Value *vectors = I64(width / 16 * 16), *end = I64(width);
  For(I64(0), vectors, 16, add(16));
  For(vectors, end, 1, add(1));
}

std::pair<Value*, Value*> Special::TakenRow(Value* i) {
  auto op = mlir::cast<ir::SumTakenOp>(op_);
  const Shape x = ShapeOf(op.getX());
  Value* row = Checked(LoadOne(op.getFrom(), 1, i), x[0]);
  return {b_.CreateMul(row, I64(x[1])), op.getWeights() ? LoadOne(op.getWeights(), 3, i) : nullptr};
}

// Some columns at a time, whose sums are registers.
void Special::SumRows(Value* target, Value* from, Value* to) {
  mlir::Type element = ElementOf(op_->getResult(0));
  const int64_t width = ShapeOf(op_->getResult(0))[1];
  auto columns = [&](int lanes, int vectors) {
    return [&, lanes, vectors](Value* first) {
      std::vector<Value*> sums;
      for (int i = 0; i < vectors; ++i) {
        sums.push_back(EntryAlloca(ops_.RegisterType(element, lanes)));
        b_.CreateStore(ops_.Identity(ElementOps::Fold::kSum, element, lanes), sums.back());
      }
      auto column = [&](Value* row, int i) { return b_.CreateAdd(row, b_.CreateAdd(first, b_.getInt64(i * lanes))); };
      For(from, to, 1, [&](Value* i) {
        Value* ahead = b_.CreateAdd(i, b_.getInt64(kAhead));
        PrefetchRow(b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, ahead, I64(ShapeOf(op_->getOperand(2))[0] - 1)),
                    width);
        const auto [row, weight] = TakenRow(i);
        for (int v = 0; v < vectors; ++v) {
          Value* old = b_.CreateLoad(ops_.RegisterType(element, lanes), sums[v]);
          Value* sum = ops_.Combine(ElementOps::Fold::kSum, element, old, Weighed(column(row, v), weight, lanes));
          b_.CreateStore(ops_.Round(element, sum), sums[v]);
        }
      });
      Value* row = b_.CreateMul(target, I64(width));
      for (int v = 0; v < vectors; ++v) {
        Value* sum = b_.CreateLoad(ops_.RegisterType(element, lanes), sums[v]);
        ops_.Store(element, sum, At(pointers_[inputs_], element, column(row, v)), false);
      }
    };
  };
  Value *blocks = I64(width / kColumns * kColumns), *vectors = I64(width / 16 * 16);
  For(I64(0), blocks, kColumns, columns(16, kColumns / 16));
  For(blocks, vectors, 16, columns(16, 1));
  For(vectors, I64(width), 1, columns(1, 1));
}

Value* Special::RunEnd(Value* list, int64_t count, Value* from, Value* value) {
  const auto block = [&](const char* name) { return llvm::BasicBlock::Create(module_.getContext(), name, function_); };
  llvm::BasicBlock *before = b_.GetInsertBlock(), *bound = block("bound"), *look = block("look"), *end = block("end");
  b_.CreateBr(bound);
  b_.SetInsertPoint(bound);
  llvm::PHINode* i = b_.CreatePHI(b_.getInt64Ty(), 2);
  i->addIncoming(from, before);
  b_.CreateCondBr(b_.CreateICmpSLT(i, I64(count)), look, end);
  b_.SetInsertPoint(look);
  i->addIncoming(b_.CreateAdd(i, b_.getInt64(1)), look);
  Value* at = b_.CreateLoad(b_.getInt64Ty(), b_.CreateInBoundsGEP(b_.getInt64Ty(), list, i));
  b_.CreateCondBr(b_.CreateICmpEQ(at, value), bound, end);
  b_.SetInsertPoint(end);
  return i;
}

// How many of the list's elements, which don't decrease, are less.
Value* Special::CountLess(Value* list, int64_t count, Value* than) {
  llvm::Type* i64 = b_.getInt64Ty();
  Value* found = EntryAlloca(i64);
  b_.CreateStore(b_.getInt64(0), found);
  Value* bits =
      b_.CreateSub(b_.getInt64(64), b_.CreateBinaryIntrinsic(llvm::Intrinsic::ctlz, I64(count), b_.getFalse()));
  For(b_.getInt64(0), bits, 1, [&](Value* done) {
    Value *less = b_.CreateLoad(i64, found), *bit = b_.CreateSub(b_.CreateSub(bits, b_.getInt64(1)), done);
    Value* next = b_.CreateAdd(less, b_.CreateShl(b_.getInt64(1), bit));
    Value* within = b_.CreateICmpSLE(next, I64(count));
    Value* last = b_.CreateSelect(within, b_.CreateSub(next, b_.getInt64(1)), b_.getInt64(0));
    Value* is_less = b_.CreateICmpSLT(b_.CreateLoad(i64, b_.CreateInBoundsGEP(i64, list, last)), than);
    b_.CreateStore(b_.CreateSelect(b_.CreateAnd(within, is_less), next, less), found);
  });
  return b_.CreateLoad(i64, found);
}

// body(i) for each i whose list[i] is in [first, first + size), a vector's at a time.
void Special::Find(Value* list, int64_t count, Value* first, Value* size, const Body& body) {
  mlir::Type index = ElementOf(op_->getOperand(1));
  Value* left = EntryAlloca(b_.getInt64Ty());  // of a vector's, one bit each
  auto look = [&](int lanes) {
    return [&, lanes](Value* at) {
      auto all = [&](Value* v) { return lanes > 1 ? b_.CreateVectorSplat(lanes, v) : v; };
      Value* inside =
          b_.CreateICmpULT(b_.CreateSub(ops_.Load(index, At(list, index, at), lanes), all(first)), all(size));
      inside = b_.CreateZExt(b_.CreateBitCast(inside, b_.getIntNTy(lanes)), b_.getInt64Ty());
      b_.CreateStore(inside, left);
      For(b_.getInt64(0), b_.CreateUnaryIntrinsic(llvm::Intrinsic::ctpop, inside), 1, [&](Value*) {
        Value* bits = b_.CreateLoad(b_.getInt64Ty(), left);
        b_.CreateStore(b_.CreateAnd(bits, b_.CreateSub(bits, b_.getInt64(1))), left);
        body(b_.CreateAdd(at, b_.CreateBinaryIntrinsic(llvm::Intrinsic::cttz, bits, b_.getTrue())));
      });
    };
  };
  Value* vectors = I64(count / 16 * 16);
  For(I64(0), vectors, 16, look(16));
  For(vectors, I64(count), 1, look(1));
}

// An item is a block of the result's rows, which stay in cache.
KernelShape Special::SumTaken() {
  auto op = mlir::cast<ir::SumTakenOp>(op_);
  mlir::Type element = ElementOf(op.getResult());
  const Shape dims = ShapeOf(op.getResult());
  const int64_t rows = dims[0], width = dims[1], count = ShapeOf(op.getTo())[0];
  const int64_t bytes = rows * width * ElementOps::BytesOf(element);
  const bool sorted = op.getSorted();
  const int64_t blocks = sorted ? std::clamp<int64_t>(bytes / kSortedBlockBytes, 1, kMostSortedBlocks)
                                : std::clamp<int64_t>(bytes / kBlockBytes, 1, kMostBlocks);
  const int64_t block = std::max<int64_t>((rows + blocks - 1) / blocks, 1);
  KernelShape shape;
  shape.rows = (rows + block - 1) / block;
  const double moved = static_cast<double>((rows + 4 * count) * width) / static_cast<double>(blocks);
  shape.grain = GrainFor(tuning_, moved * 0.1 + (sorted ? 100 : static_cast<double>(count) * 0.2), shape.rows);
  auto add = [&](Value* i) {
    Value* ahead =
        b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateAdd(i, b_.getInt64(kAhead)), I64(count - 1));
    PrefetchRow(ahead, width);
    const auto [source, weight] = TakenRow(i);
    AddRow(b_.CreateMul(LoadOne(op.getTo(), 2, i), I64(width)), source, weight, width);
  };
  Value* next = EntryAlloca(b_.getInt64Ty());  // of the taken rows
  For(begin(), end(), 1, [&](Value* item) {
    Value* first = b_.CreateMul(item, I64(block));
    Value* size = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, I64(block), b_.CreateSub(I64(rows), first));
    if (!sorted) {
      Fill(b_.CreateMul(first, I64(width)), b_.CreateMul(size, I64(width)),
           ops_.Identity(ElementOps::Fold::kSum, element, 1));
      return Find(pointers_[2], count, first, size, add);
    }
    b_.CreateStore(CountLess(pointers_[2], count, first), next);
    For(first, b_.CreateAdd(first, size), 1, [&](Value* target) {
      Value* from = b_.CreateLoad(b_.getInt64Ty(), next);
      Value* to = RunEnd(pointers_[2], count, from, target);
      b_.CreateStore(to, next);
      SumRows(target, from, to);
    });
  });
  Finish(false);
  return shape;
}

Value* Special::LastExtremum(bool max, Value* total, Value* x) {
  Value* found =
      b_.CreateSelect(b_.CreateFCmp(max ? llvm::CmpInst::FCMP_OGE : llvm::CmpInst::FCMP_OLE, x, total), x, total);
  return b_.CreateSelect(b_.CreateFCmpUNO(x, x), x, found);
}

KernelShape Special::Scan() {
  auto op = mlir::cast<ir::ScanOp>(op_);
  int64_t dim = op.getDim();
  Shape dims = ShapeOf(op.getX());
  int64_t size = dims[dim], inner = NumElements(dims.drop_front(dim + 1)), outer = NumElements(dims.take_front(dim));
  mlir::Type element = ElementOf(op.getX());
  // Float sums and products run in f64, as ATen's do.
  bool wide = mlir::isa<mlir::FloatType>(element) &&
              (op.getKind() == ir::ReduceKind::sum || op.getKind() == ir::ReduceKind::prod);
  mlir::Type running = wide ? mlir::Float64Type::get(element.getContext()) : element;
  auto fold = static_cast<ElementOps::Fold>(op.getKind());
  const bool extremum = mlir::isa<mlir::FloatType>(element) && !wide;
  int lanes = inner % 8 == 0 ? 8 : 1;
  // Along a row by runs of neighbours, each run's own totals first: one operation a run waits for the run before. The
  // totals are the same in any order, to f64's last places where they are of narrower floats, and never overflow there.
  const int run = inner == 1 && !extremum && !element.isF64() ? 4 : 1;
  KernelShape shape;
  shape.rows = outer * (inner / lanes);
  shape.grain = GrainFor(tuning_, static_cast<double>(size * lanes) / run, shape.rows);
  Value* slot = EntryAlloca(ops_.RegisterType(running, lanes));
  For(begin(), end(), 1, [&](Value* item) {
    Value* column = b_.CreateMul(b_.CreateURem(item, I64(inner / lanes)), I64(lanes));
    Value* start = b_.CreateAdd(b_.CreateMul(b_.CreateUDiv(item, I64(inner / lanes)), I64(size * inner)), column);
    b_.CreateAlignedStore(ops_.Identity(fold, running, lanes), slot, llvm::Align(8));
    const auto scan = [&](Value* from, Value* to, int width) {
      For(from, to, width, [&](Value* i) {
        Value* at = b_.CreateAdd(start, b_.CreateMul(i, I64(inner)));
        Value* x = ops_.Load(element, At(pointers_[0], element, at), std::max(lanes, width));
        x = ops_.Convert(element, running, x);
        Value* total = b_.CreateAlignedLoad(ops_.RegisterType(running, lanes), slot, llvm::Align(8));
        for (int shift = 1; shift < width; shift *= 2) {
          llvm::SmallVector<int> earlier;
          for (int lane = 0; lane < width; ++lane) earlier.push_back(lane < shift ? lane : width + lane - shift);
          x = ops_.Combine(fold, running, b_.CreateShuffleVector(ops_.Identity(fold, running, width), x, earlier), x);
        }
        Value* totals = extremum
                            ? LastExtremum(op.getKind() == ir::ReduceKind::max, total, x)
                            : ops_.Combine(fold, running, width > 1 ? b_.CreateVectorSplat(width, total) : total, x);
        if (width > 1) total = ops_.Combine(fold, running, total, b_.CreateExtractElement(x, width - 1));
        b_.CreateAlignedStore(width > 1 ? total : totals, slot, llvm::Align(8));
        ops_.Store(element, ops_.Convert(running, element, totals), At(pointers_[1], element, at), false);
      });
    };
    Value* const whole = b_.CreateAnd(I64(size), b_.getInt64(-run));
    if (run > 1) scan(I64(0), whole, run);
    scan(run > 1 ? whole : I64(0), I64(size), 1);
  });
  Finish(false);
  return shape;
}

KernelShape Special::Sort() {
  auto op = mlir::cast<ir::SortOp>(op_);
  int64_t dim = op.getDim();
  Shape dims = ShapeOf(op.getX());
  int64_t size = dims[dim], inner = NumElements(dims.drop_front(dim + 1)), outer = NumElements(dims.take_front(dim));
  mlir::Type element = ElementOf(op.getX());
  KernelShape shape;
  shape.rows = outer * inner;
  shape.grain = GrainFor(tuning_, static_cast<double>(size) * 30, shape.rows);
  llvm::Type* i64 = b_.getInt64Ty();
  llvm::Type* pointer = llvm::PointerType::get(module_.getContext(), 0);
  auto callee = module_.getOrInsertFunction(
      "tpu_host_sort", llvm::FunctionType::get(b_.getVoidTy(), {i64, pointer, pointer, pointer, i64, i64, i64}, false));
  For(begin(), end(), 1, [&](Value* item) {
    Value* at =
        b_.CreateAdd(b_.CreateMul(b_.CreateUDiv(item, I64(inner)), I64(size * inner)), b_.CreateURem(item, I64(inner)));
    b_.CreateCall(callee, {I64(static_cast<int64_t>(ir::DTypeOf(element))), At(pointers_[0], element, at),
                           At(pointers_[1], element, at), At(pointers_[2], ElementOf(op.getIndices()), at), I64(size),
                           I64(inner), I64(op.getDescending() ? 1 : 0)});
  });
  Finish(false);
  return shape;
}

}  // namespace

bool IsSpecialOp(mlir::Operation* op) {
  if (!mlir::isa<ir::ScatterOp, ir::ScatterRowsOp, ir::SumTakenOp, ir::ScanOp, ir::SortOp>(op)) return false;
  return llvm::all_of(op->getResultTypes(), [](mlir::Type type) {
    return mlir::cast<mlir::RankedTensorType>(type).getElementType().isIntOrFloat();
  });
}

bool IsMadeInside(mlir::Operation* op, mlir::Value operand) {
  return mlir::isa<ir::ScatterOp, ir::ScatterRowsOp>(op) && op->getOperand(0) == operand && SplatOf(operand) &&
         !llvm::is_contained(SpecialInputs(op), operand);
}

mlir::Value BaseOf(mlir::Operation* op) {
  if (!mlir::isa<ir::ScatterOp, ir::ScatterRowsOp>(op) || SplatOf(op->getOperand(0))) return nullptr;
  return op->getOperand(0);
}

llvm::SmallVector<mlir::Value> SpecialInputs(mlir::Operation* op) {
  const bool scatters = mlir::isa<ir::ScatterOp, ir::ScatterRowsOp>(op);
  return llvm::to_vector(llvm::drop_begin(op->getOperands(), scatters ? 1 : 0));
}

KernelWriter SpecialWriter(mlir::Operation* op, const Tuning& tuning) {
  return {[op, tuning](llvm::Module& module, KernelNumbers& numbers) {
    Special emitter(op, module, tuning, SpecialInputs(op).size(), numbers);
    if (mlir::isa<ir::ScatterOp>(op)) return emitter.Scatter();
    if (mlir::isa<ir::ScatterRowsOp>(op)) return emitter.ScatterRows();
    if (mlir::isa<ir::SumTakenOp>(op)) return emitter.SumTaken();
    if (mlir::isa<ir::ScanOp>(op)) return emitter.Scan();
    return emitter.Sort();
  }};
}

}  // namespace tpu::host

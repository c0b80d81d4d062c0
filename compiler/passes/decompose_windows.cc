// Pass decompose-windows: pooling becomes elementwise combination of strided slices, one for each place in the window,
// which fusion makes one kernel (with whatever comes before and after).
#include "compiler/ir/builder.h"
#include "compiler/ir/dialect.h"
#include "compiler/passes/passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace tpu {
namespace {

using ir::Ints;
using ir::Shape;
using ir::Tensor;

constexpr int64_t kMaxPlaces = 25;  // beyond, one dim at a time
constexpr int64_t kMaxSlices = 64;  // of which code is made for each

struct Window {
  Ints window, strides, dilation, low, high;
  template <typename Op>
  explicit Window(Op op)
      : window(op.getWindow()),
        strides(op.getStrides()),
        dilation(op.getDilation()),
        low(op.getPaddingLow()),
        high(op.getPaddingHigh()) {}
};

Tensor Identity(ir::Emitter& e, ir::ReduceKind kind, DType dtype) {
  switch (kind) {
    case ir::ReduceKind::max:
      return e.Lowest(dtype);
    case ir::ReduceKind::min:
      return e.Highest(dtype);
    case ir::ReduceKind::prod:
      return e.Constant(dtype, 1);
    default:
      return e.Constant(dtype, 0);
  }
}

Tensor Combine(ir::ReduceKind kind, Tensor a, Tensor b) {
  switch (kind) {
    case ir::ReduceKind::max:
      return ir::Max(a, b);
    case ir::ReduceKind::min:
      return ir::Min(a, b);
    case ir::ReduceKind::prod:
      return ir::Mul(a, b);
    default:
      return ir::Add(a, b);
  }
}

// x with the window's padding, in the dims from `first` on whose `dims` bit is set.
Tensor Padded(Tensor x, Tensor value, const Window& w) {
  int64_t lead = x.rank() - static_cast<int64_t>(w.window.size());
  Shape low(x.rank(), 0), high(x.rank(), 0), interior(x.rank(), 0);
  bool any = false;
  for (size_t d = 0; d < w.window.size(); ++d) {
    low[lead + d] = w.low[d];
    high[lead + d] = w.high[d];
    any |= w.low[d] != 0 || w.high[d] != 0;
  }
  return any ? ir::Pad(x, value, low, high, interior) : x;
}

// The element at `place` of every window. out: the result's dims.
Tensor At(Tensor padded, const Window& w, Ints out, Ints place) {
  int64_t lead = padded.rank() - static_cast<int64_t>(place.size());
  Shape start(padded.rank(), 0), limit(padded.dims()), stride(padded.rank(), 1);
  for (size_t d = 0; d < place.size(); ++d) {
    start[lead + d] = place[d] * w.dilation[d];
    limit[lead + d] = start[lead + d] + (out[lead + d] - 1) * w.strides[d] + 1;
    stride[lead + d] = w.strides[d];
  }
  return ir::Slice(padded, start, limit, stride);
}

bool Next(Shape& place, Ints window) {
  for (size_t d = place.size(); d-- > 0;) {
    if (++place[d] < window[d]) return true;
    place[d] = 0;
  }
  return false;
}

Tensor Places(Tensor padded, ir::ReduceKind kind, const Window& w, Ints out) {
  Shape place(w.window.size(), 0);
  Tensor result;
  do {
    Tensor at = At(padded, w, out, place);
    result = result ? Combine(kind, result, at) : at;
  } while (Next(place, w.window));
  return result;
}

Tensor Strided(Tensor x, int64_t dim, int64_t start, int64_t count, int64_t stride) {
  return ir::SliceDim(x, dim, start, start + (count - 1) * stride + 1, stride);
}

// The combination of `size` elements, `apart` from one another, from each position of x on: two of half as many, which
// are made of two of a quarter, and so on.
Tensor Doubled(Tensor x, ir::ReduceKind kind, int64_t dim, int64_t size, int64_t apart) {
  const int64_t count = x.size(dim) - (size - 1) * apart;
  Tensor result;
  for (int64_t bit = 1, done = 0;; bit *= 2) {  // x: of so many elements; result: of those that are done
    if (size & bit) {
      const Tensor part = Strided(x, dim, done * apart, count, 1);
      result = result ? Combine(kind, result, part) : part;
      done += bit;
    }
    if (done == size) return result;
    const int64_t rest = x.size(dim) - bit * apart;
    x = Combine(kind, Strided(x, dim, 0, rest, 1), Strided(x, dim, bit * apart, rest, 1));
  }
}

// Windows along one dim.
Tensor Along(Tensor x, ir::ReduceKind kind, const Window& w, size_t d, int64_t out) {
  const int64_t dim = x.rank() - static_cast<int64_t>(w.window.size() - d);
  const int64_t size = w.window[d], stride = w.strides[d], apart = w.dilation[d];
  if (size <= kMaxSlices) {
    Tensor result;
    for (int64_t i = 0; i < size; ++i) {
      const Tensor at = Strided(x, dim, i * apart, out, stride);
      result = result ? Combine(kind, result, at) : at;
    }
    return result;
  }
  if (stride != size || apart != 1) return Strided(Doubled(x, kind, dim, size, apart), dim, 0, out, stride);
  Shape split(x.dims());  // beside each other
  split[dim] = out;
  split.insert(split.begin() + dim + 1, size);
  return ir::Reduce(kind, ir::Reshape(Strided(x, dim, 0, out * size, 1), split), {dim + 1}, false);
}

void Decompose(ir::WindowReduceOp op) {
  mlir::OpBuilder builder(op);
  ir::Emitter e(builder, op.getLoc());
  Window w(op);
  Tensor x = e.Wrap(op.getX());
  Shape out(ir::TensorTypeOf(op.getResult()).getShape());
  DType dtype = x.dtype();
  bool half = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  if (half) x = ir::Convert(x, DType::kFloat32);
  x = Padded(x, Identity(e, op.getKind(), x.dtype()), w);
  int64_t places = 1;
  for (int64_t size : w.window) places *= size;
  Tensor result;
  if (places <= kMaxPlaces) {
    result = Places(x, op.getKind(), w, out);
  } else {
    result = x;
    int64_t lead = x.rank() - static_cast<int64_t>(w.window.size());
    for (size_t d = 0; d < w.window.size(); ++d) result = Along(result, op.getKind(), w, d, out[lead + d]);
  }
  if (half) result = ir::Convert(result, dtype);
  op.getResult().replaceAllUsesWith(result);
  op.erase();
}

void Decompose(ir::WindowArgReduceOp op) {
  mlir::OpBuilder builder(op);
  ir::Emitter e(builder, op.getLoc());
  Window w(op);
  Tensor x = e.Wrap(op.getX());
  Shape out(ir::TensorTypeOf(op.getResult()).getShape());
  bool max = op.getKind() == ir::ExtremumKind::max;
  int64_t lead = x.rank() - static_cast<int64_t>(w.window.size());
  // Where each window starts (perhaps in the padding), and its first position inside the operand.
  Tensor corner = e.Integer(DType::kInt64, 0, out), first = corner;
  Shape steps(w.window.size(), 1);
  for (size_t d = w.window.size(); d-- > 1;) steps[d - 1] = steps[d] * x.size(lead + d);
  for (size_t d = 0; d < w.window.size(); ++d) {
    Tensor start =
        e.Iota(DType::kInt64, out, lead + d) * static_cast<double>(w.strides[d]) - static_cast<double>(w.low[d]);
    Tensor outside = ir::Max(-start, e.Integer(DType::kInt64, 0, out));
    double dilation = static_cast<double>(w.dilation[d]);
    Tensor inside = start + ((outside + (dilation - 1)) / dilation) * dilation;
    inside = ir::Min(inside, e.Integer(DType::kInt64, x.size(lead + d) - 1, out));
    corner = corner + start * static_cast<double>(steps[d]);
    first = first + inside * static_cast<double>(steps[d]);
  }
  Tensor lowest = max ? e.Lowest(x.dtype()) : e.Highest(x.dtype());
  Tensor padded = Padded(x, lowest, w);
  Tensor best = ir::BroadcastTo(lowest, out), where = first;
  Shape place(w.window.size(), 0);
  do {
    Tensor at = At(padded, w, out, place);
    int64_t offset = 0;
    for (size_t d = 0; d < place.size(); ++d) offset += place[d] * w.dilation[d] * steps[d];
    Tensor better = max ? at > best : at < best;
    if (IsFloat(x.dtype())) better = better | ir::IsNan(at);
    best = ir::Select(better, at, best);
    where = ir::Select(better, corner + e.Integer(DType::kInt64, offset, out), where);
  } while (Next(place, w.window));
  op.getResult().replaceAllUsesWith(where);
  op.erase();
}

struct DecomposeWindows : mlir::PassWrapper<DecomposeWindows, mlir::OperationPass<mlir::func::FuncOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(DecomposeWindows)
  explicit DecomposeWindows(bool indices_only) : indices_only_(indices_only) {}
  llvm::StringRef getArgument() const override { return "decompose-windows"; }
  llvm::StringRef getDescription() const override { return "Pooling as slices and elementwise operations"; }
  void runOnOperation() override {
    llvm::SmallVector<mlir::Operation*> ops;
    getOperation().walk([&](mlir::Operation* op) {
      if (mlir::isa<ir::WindowArgReduceOp>(op) || (mlir::isa<ir::WindowReduceOp>(op) && !indices_only_)) {
        ops.push_back(op);
      }
    });
    for (mlir::Operation* op : ops) {
      if (auto reduce = mlir::dyn_cast<ir::WindowReduceOp>(op)) {
        Decompose(reduce);
      } else {
        Decompose(mlir::cast<ir::WindowArgReduceOp>(op));
      }
    }
  }

 private:
  const bool indices_only_;
};

}  // namespace

std::unique_ptr<mlir::Pass> CreateDecomposeWindowsPass(bool indices_only) {
  return std::make_unique<DecomposeWindows>(indices_only);
}

}  // namespace tpu

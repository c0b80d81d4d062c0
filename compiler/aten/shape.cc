// Operators that move elements and are no views.
#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

Result Cat(AtenCall& c) {
  llvm::SmallVector<Tensor> parts;
  for (Tensor t : c.tensors(0)) {
    if (!MayConvert(t.dtype(), c.result_dtype())) return Result::Decline();
    bool skipped = t.rank() == 1 && t.size(0) == 0 && c.result_dims().size() != 1;  // an old habit of torch.cat
    if (!skipped) parts.push_back(ir::Convert(t, c.result_dtype()));
  }
  if (parts.empty()) return Result::Decline();
  return ir::Concat(parts, c.dim(1, c.result_dims().size()));
}

Result Stack(AtenCall& c) {
  llvm::SmallVector<Tensor> parts;
  int64_t dim = c.dim(1, c.result_dims().size());
  for (Tensor t : c.tensors(0)) {
    if (!MayConvert(t.dtype(), c.result_dtype())) return Result::Decline();
    parts.push_back(ir::Convert(ir::Unsqueeze(t, dim), c.result_dtype()));
  }
  return ir::Concat(parts, dim);
}

Result Roll(AtenCall& c) {  // (x, shifts, dims)
  Tensor x = c.tensor(0);
  Shape shifts = c.ints(1), dims = c.ints(2), original(x.dims());
  if (dims.empty()) {
    x = Flat(x);
    dims = {0};
  }
  if (x.elements() == 0) return c.tensor(0);
  for (size_t i = 0; i < dims.size(); ++i) {
    int64_t d = dims[i] < 0 ? dims[i] + x.rank() : dims[i], size = x.size(d);
    int64_t split = (size - shifts[i] % size) % size;
    if (split != 0) x = ir::Concat({ir::SliceDim(x, d, split, size), ir::SliceDim(x, d, 0, split)}, d);
  }
  return ir::Reshape(x, original);
}

// (x, pad, value): pad lists (low, high) from the last dim on; negative crops.
Result ConstantPad(AtenCall& c) {
  Tensor x = c.tensor(0);
  Shape pad = c.ints(1), low(x.rank(), 0), high(x.rank(), 0);
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    int64_t d = x.rank() - 1 - i, before = pad[2 * i], after = pad[2 * i + 1];
    x = ir::SliceDim(x, d, std::max<int64_t>(0, -before), x.size(d) - std::max<int64_t>(0, -after));
    low[d] = std::max<int64_t>(0, before);
    high[d] = std::max<int64_t>(0, after);
  }
  return ir::Pad(x, c.as(2, x.dtype(), 0), low, high, Shape(x.rank(), 0));
}

// Elements with column - row <= diagonal (tril) or >= diagonal (triu).
Lowering Triangle(bool lower) {
  return [lower](AtenCall& c) -> Result {
    Tensor x = c.tensor(0);
    Shape matrix{x.size(-2), x.size(-1)};
    int64_t diagonal = std::clamp<int64_t>(c.integer(1), -matrix[0] - 1, matrix[1] + 1);
    Tensor across = c.emitter().Iota(DType::kInt32, matrix, 1) - c.emitter().Iota(DType::kInt32, matrix, 0);
    Tensor kept = lower ? across <= diagonal : across >= diagonal;
    return ir::Select(kept, x, c.emitter().Constant(x.dtype(), 0));
  };
}

// base with src written at start (step `step`) along `dim`.
Tensor Place(Tensor base, Tensor src, int64_t dim, int64_t start, int64_t step = 1) {
  Shape starts(base.rank(), 0), steps(base.rank(), 1);
  starts[dim] = start;
  steps[dim] = step;
  return ir::UpdateSlice(base, src, starts, steps);
}

int64_t ClampIndex(int64_t index, int64_t size) {
  return std::clamp<int64_t>(index < 0 ? index + size : index, 0, size);
}

Result SliceScatter(AtenCall& c) {  // (base, src, dim, start, end, step)
  Tensor base = c.tensor(0);
  int64_t dim = c.dim(2, base.rank());
  return Place(base, c.tensor(1), dim, ClampIndex(c.integer(3), base.size(dim)), c.integer(5, 1));
}
Result SelectScatter(AtenCall& c) {  // (base, src, dim, index)
  Tensor base = c.tensor(0);
  int64_t dim = c.dim(2, base.rank()), index = c.integer(3);
  return Place(base, ir::Unsqueeze(c.tensor(1), dim), dim, index < 0 ? index + base.size(dim) : index);
}

Result ChannelShuffle(AtenCall& c) {  // (x, groups)
  const Tensor x = c.tensor(0);
  const int64_t groups = c.integer(1);
  Shape dims{x.size(0), groups, x.size(1) / groups};
  dims.append(x.dims().begin() + 2, x.dims().end());
  return ir::Reshape(ir::SwapDims(ir::Reshape(x, dims), 1, 2), x.dims());
}

// (x, factor): factor * factor channels of a position become a block of positions, or (`spread` false) the reverse.
Lowering PixelShuffle(bool spread) {
  return [spread](AtenCall& c) -> Result {
    Tensor x = c.tensor(0);
    const int64_t f = c.integer(1);
    const Ints small = spread ? x.dims() : c.result_dims(), large = spread ? c.result_dims() : x.dims();
    const Ints outer = large.drop_back(2), grid = small.take_back(2);
    Shape dims(outer);
    const int64_t n = int64_t(dims.size());
    Shape order(llvm::to_vector(llvm::seq<int64_t>(0, n)));
    if (spread) {
      dims.append({f, f, grid[0], grid[1]});
      order.append({n + 2, n, n + 3, n + 1});
    } else {
      dims.append({grid[0], f, grid[1], f});
      order.append({n + 1, n + 3, n, n + 2});
    }
    return ir::Reshape(ir::Transpose(ir::Reshape(x, dims), order), c.result_dims());
  };
}

// Reflection and replication: along each padded dim, rows taken at computed positions; their gradient adds back.
struct BorderPad {
  bool reflect;
  int64_t Source(int64_t i, int64_t size) const {
    if (!reflect) return std::clamp<int64_t>(i, 0, size - 1);
    if (i < 0) return -i;
    return i < size ? i : 2 * (size - 1) - i;
  }
  Tensor Positions(Emitter& e, int64_t size, int64_t low, int64_t high) const {
    Shape positions;
    for (int64_t i = -low; i < size + high; ++i) positions.push_back(Source(i, size));
    return e.Dense(DType::kInt64, positions);
  }
  Result Forward(AtenCall& c) const {  // (x, padding)
    Tensor x = c.tensor(0);
    Shape pad = c.ints(1);
    for (size_t i = 0; i < pad.size() / 2; ++i) {
      int64_t d = x.rank() - 1 - i;
      x = ir::Take(x, Positions(c.emitter(), x.size(d), pad[2 * i], pad[2 * i + 1]), d);
    }
    return x;
  }
  Result Backward(AtenCall& c) const {  // (dy, x, padding)
    Tensor dy = c.x(0), x = c.tensor(1);
    Shape pad = c.ints(2);
    for (size_t i = 0; i < pad.size() / 2; ++i) {
      int64_t d = x.rank() - 1 - i;
      Shape dims(dy.dims());
      dims[d] = x.size(d);
      Tensor base = c.emitter().Constant(dy.dtype(), 0, dims);
      dy = ir::ScatterRows(ir::ScatterKind::add, base, Positions(c.emitter(), x.size(d), pad[2 * i], pad[2 * i + 1]),
                           dy, d);
    }
    return dy;
  }
};

}  // namespace

void RegisterShape(Registry& r) {
  r.Add("aten::cat", Cat, kAnyElement);
  r.Add({"aten::stack", "aten::_stack"}, Stack, kAnyElement);
  r.Add("aten::roll", Roll, kAnyElement);
  r.Add(
      "aten::flip",
      [](AtenCall& c) -> Result { return ir::Reverse(c.tensor(0), c.dims(1, c.tensor(0).rank(), false)); },
      kAnyElement);
  r.Add(
      "aten::repeat",
      [](AtenCall& c) -> Result {
        Tensor x = c.tensor(0);
        Shape times = c.ints(1), spread, along;
        int64_t lead = int64_t(times.size()) - x.rank();
        for (int64_t d = 0; d < int64_t(times.size()); ++d) {
          spread.push_back(times[d]);
          if (d < lead) continue;
          along.push_back(spread.size());
          spread.push_back(x.size(d - lead));
        }
        return ir::Reshape(ir::BroadcastAlong(x, spread, along), c.result_dims());
      },
      kAnyElement);
  r.Add({"aten::channel_shuffle", "aten::native_channel_shuffle"}, ChannelShuffle, kAnyElement);
  r.Add("aten::pixel_shuffle", PixelShuffle(true), kAnyElement);
  r.Add("aten::pixel_unshuffle", PixelShuffle(false), kAnyElement);
  r.Add("aten::constant_pad_nd", ConstantPad);
  r.Add("aten::tril", Triangle(true));
  r.Add("aten::triu", Triangle(false));
  r.Add("aten::slice_scatter", SliceScatter, kAnyElement);
  r.Add("aten::select_scatter", SelectScatter, kAnyElement);
  for (int n = 1; n <= 3; ++n) {
    for (bool reflect : {true, false}) {
      std::string name =
          std::string("aten::") + (reflect ? "reflection" : "replication") + "_pad" + std::to_string(n) + "d";
      BorderPad pad{reflect};
      r.Add(name, [pad](AtenCall& c) { return pad.Forward(c); });
      r.Add(name + "_backward", [pad](AtenCall& c) { return pad.Backward(c); });
    }
  }
}

}  // namespace tpu::aten

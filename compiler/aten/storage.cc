// The dispatcher's own operators: strided windows of storages, casts and copies.
//
// A strided window is normalised to a slice of the flat elements seen in some row-major factorisation ("radix") of
// them: the source's own dims first (so that x[:, ::2] is one slice), then the flat elements themselves (so that a
// matrix in a bucket is one run), else the one that the window's strides spell (so that x.t() is a transpose). Windows
// that overlap themselves take flat indices.
#include <numeric>

#include "compiler/aten/families.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

struct StridedWindow {
  Shape sizes, strides;
  int64_t offset = 0;
  int64_t elements() const { return NumElements(sizes); }
  // One more than the last flat element touched.
  int64_t end() const {
    int64_t last = offset;
    for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
    return last + 1;
  }
};

// The window as a slice of the flat elements reshaped to `radix` (whose product may exceed the number of elements:
// then they are padded). owner[r]: the window's dim that runs along radix dim r, or -1.
struct Plan {
  Shape radix, start, count, step, owner;
};

// Dims of the window that move (size > 1, stride > 0), longest stride first.
Shape MovingDims(const StridedWindow& w) {
  Shape dims;
  for (size_t i = 0; i < w.sizes.size(); ++i) {
    if (w.sizes[i] > 1 && w.strides[i] > 0) dims.push_back(i);
  }
  llvm::stable_sort(dims, [&](int64_t a, int64_t b) { return w.strides[a] > w.strides[b]; });
  return dims;
}

// Starts of the window along `radix` from its offset; false when a dim of the window leaves its radix dim.
bool Place(const StridedWindow& w, Plan& p) {
  int64_t rest = w.offset;
  p.start.assign(p.radix.size(), 0);
  p.count.assign(p.radix.size(), 1);
  for (size_t r = p.radix.size(); r-- > 0;) {
    p.start[r] = r == 0 ? rest : rest % p.radix[r];
    rest /= p.radix[r];
    if (p.owner[r] >= 0) p.count[r] = w.sizes[p.owner[r]];
    if (p.start[r] + (p.count[r] - 1) * p.step[r] >= p.radix[r]) return false;
  }
  return true;
}

std::optional<Plan> AlongSourceDims(const StridedWindow& w, Ints source) {
  Plan p;
  p.radix.assign(source.begin(), source.end());
  p.owner.assign(source.size(), -1);
  p.step.assign(source.size(), 1);
  Shape unit(source.size(), 1);
  for (size_t r = source.size(); r-- > 1;) unit[r - 1] = unit[r] * source[r];
  for (int64_t d : MovingDims(w)) {
    size_t r = 0;
    while (r < source.size() && (source[r] == 1 || w.strides[d] < unit[r])) ++r;
    if (r == source.size() || w.strides[d] % unit[r] != 0 || p.owner[r] >= 0) return std::nullopt;
    p.owner[r] = d;
    p.step[r] = w.strides[d] / unit[r];
  }
  if (!Place(w, p)) return std::nullopt;
  return p;
}

std::optional<Plan> AlongOwnStrides(const StridedWindow& w, int64_t elements) {
  Plan p;
  Shape moving = MovingDims(w);
  int64_t unit = 0;
  for (int64_t d : moving) {
    if (unit != 0 && unit % w.strides[d] != 0) return std::nullopt;
    p.radix.push_back(unit == 0 ? 0 : unit / w.strides[d]);
    p.owner.push_back(d);
    unit = w.strides[d];
  }
  if (moving.empty()) {
    p.radix.push_back(elements);
    p.owner.push_back(-1);
  } else {
    int64_t outer = w.strides[moving[0]];
    int64_t rows = w.offset / outer + w.sizes[moving[0]];
    p.radix[0] = elements % outer == 0 ? elements / outer : rows;
    if (unit > 1) {
      p.radix.push_back(unit);
      p.owner.push_back(-1);
    }
  }
  p.step.assign(p.radix.size(), 1);
  if (!Place(w, p)) return std::nullopt;
  return p;
}

// Consecutive elements that are no slice of the source as it is: the window of them among the flat elements.
std::optional<StridedWindow> AsRun(const StridedWindow& w, Ints source) {
  int64_t unit = 1;
  for (size_t d = w.sizes.size(); d-- > 0;) {
    if (w.sizes[d] > 1 && w.strides[d] != unit) return std::nullopt;
    unit *= w.sizes[d];
  }
  if (w.sizes.size() == 1 || AlongSourceDims(w, source)) return std::nullopt;
  return StridedWindow{{unit}, {1}, w.offset};
}

std::optional<Plan> MakePlan(const StridedWindow& w, Ints source) {
  if (std::optional<Plan> p = AlongSourceDims(w, source)) return p;
  return AlongOwnStrides(w, NumElements(source));
}

// The source's elements as `radix`: padded with zeros or cut where the numbers differ.
Tensor InRadix(Tensor source, Ints radix) {
  int64_t wanted = NumElements(radix);
  int64_t elements = source.elements();
  if (wanted > elements) source = ir::Pad(Flat(source), 0, {0}, {wanted - elements});
  if (wanted < elements) source = ir::SliceDim(Flat(source), 0, 0, wanted);
  return ir::Reshape(source, radix);
}

// Flat indices of the window's elements, in its row-major order.
Tensor FlatIndices(Emitter& e, const StridedWindow& w) {
  Tensor index = e.Integer(DType::kInt64, w.offset, w.sizes);
  for (size_t d = 0; d < w.sizes.size(); ++d) {
    if (w.sizes[d] > 1 && w.strides[d] > 0) {
      index = index + e.Iota(DType::kInt64, w.sizes, d) * e.Integer(DType::kInt64, w.strides[d]);
    }
  }
  return index;
}

Tensor ReadWindow(Tensor source, const StridedWindow& w) {
  if (w.elements() == 0) return source.emitter().Constant(source.dtype(), 0, w.sizes);
  if (auto run = AsRun(w, source.dims())) return ir::Reshape(ReadWindow(Flat(source), *run), w.sizes);
  std::optional<Plan> plan = MakePlan(w, source.dims());
  if (!plan) return ir::Take(Flat(source), FlatIndices(source.emitter(), w), 0);
  Shape limit, owned, order;
  for (size_t r = 0; r < plan->radix.size(); ++r) {
    limit.push_back(plan->start[r] + (plan->count[r] - 1) * plan->step[r] + 1);
    if (plan->owner[r] >= 0) {
      owned.push_back(plan->count[r]);
      order.push_back(plan->owner[r]);
    }
  }
  Tensor window = ir::Slice(InRadix(source, plan->radix), plan->start, limit, plan->step);
  window = ir::Reshape(window, owned);
  // Result dim k of the transpose is the k-th moving dim of the window in its own order.
  Shape permutation(order.size());
  std::iota(permutation.begin(), permutation.end(), 0);
  llvm::sort(permutation, [&](int64_t a, int64_t b) { return order[a] < order[b]; });
  window = ir::Transpose(window, permutation);
  llvm::sort(order);
  return ir::BroadcastAlong(window, w.sizes, order);
}

// base with src at `index`, all of one dim. Scatters are of real numbers; others go as their parts, or as bits.
Tensor SetAt(Tensor base, Tensor index, Tensor src) {
  DType dtype = base.dtype(), part = RealOf(dtype);
  if (IsOpaque(dtype)) {
    part = SizeOf(dtype) == 1 ? DType::kUInt8 : SizeOf(dtype) == 2 ? DType::kUInt16 : DType::kUInt32;
  }
  if (part == dtype) return ir::ScatterRows(ir::ScatterKind::set, base, index, src, 0);
  const auto parts = [&](Tensor x) {
    return ir::Reshape(ir::Bitcast(x, part), {x.elements(), static_cast<int64_t>(SizeOf(dtype) / SizeOf(part))});
  };
  return ir::Bitcast(Flat(ir::ScatterRows(ir::ScatterKind::set, parts(base), index, parts(src), 0)), dtype);
}

// base with the window replaced by src (of the window's dims).
Tensor WriteWindow(Tensor base, Tensor src, StridedWindow w) {
  if (w.elements() == 0) return base;
  if (auto run = AsRun(w, base.dims())) return ir::Reshape(WriteWindow(Flat(base), Flat(src), *run), base.dims());
  for (size_t d = 0; d < w.sizes.size(); ++d) {  // of elements that share a place the last one stays
    if (w.strides[d] == 0 && w.sizes[d] > 1) {
      src = ir::SliceDim(src, d, w.sizes[d] - 1, w.sizes[d]);
      w.sizes[d] = 1;
    }
  }
  std::optional<Plan> plan = MakePlan(w, base.dims());
  if (!plan) return ir::Reshape(SetAt(Flat(base), Flat(FlatIndices(base.emitter(), w)), Flat(src)), base.dims());
  Shape moving, permutation;
  for (size_t d = 0; d < w.sizes.size(); ++d) {
    if (llvm::is_contained(plan->owner, static_cast<int64_t>(d))) moving.push_back(d);
  }
  Shape dims;
  for (int64_t d : moving) dims.push_back(w.sizes[d]);
  for (int64_t d : plan->owner) {
    if (d >= 0) permutation.push_back(llvm::find(moving, d) - moving.begin());
  }
  src = ir::Reshape(ir::Transpose(ir::Reshape(src, dims), permutation), plan->count);
  Tensor written = ir::UpdateSlice(InRadix(base, plan->radix), src, plan->start, plan->step);
  int64_t elements = base.elements(), in_radix = written.elements();
  if (in_radix > elements) written = ir::SliceDim(Flat(written), 0, 0, elements);
  if (in_radix < elements) {
    written = ir::Concat({Flat(written), ir::SliceDim(Flat(base), 0, in_radix, elements)}, 0);
  }
  return ir::Reshape(written, base.dims());
}

// Compilers of devices with memory in tiles take minutes to cut many elements into smaller ones (libtpu: 40 s for a
// megabyte), and a second for the way back: the host does that at once. A complex number's parts are simple.
bool LeftToTheHost(AtenCall& c, Tensor x, DType dtype) {
  constexpr int64_t kMostByDevice = 4096;  // elements
  const bool parts = IsComplex(x.dtype()) && SizeOf(x.dtype()) == 2 * SizeOf(dtype);
  return !c.host_kernels() && SizeOf(dtype) < SizeOf(x.dtype()) && !parts && x.elements() > kMostByDevice;
}

// x's bytes as elements of another type: with its dims where element sizes are equal, else flat.
Tensor Reinterpret(Tensor x, DType dtype) {
  if (x.dtype() == dtype) return x;
  if (SizeOf(x.dtype()) == SizeOf(dtype)) return ir::Bitcast(x, dtype);
  int64_t group = std::max<int64_t>(1, SizeOf(dtype) / SizeOf(x.dtype()));
  Tensor flat = Flat(x);
  return ir::Bitcast(ir::SliceDim(flat, 0, 0, flat.elements() / group * group), dtype);
}

// As what is moved bit by bit. What is written over elements of another type is: else these would all be numbers of
// that type (bools 0 and 1, each NaN a quiet one), also where nothing is written.
Tensor AsBits(Tensor x) {
  if (IsComplex(x.dtype())) return x;
  const size_t size = SizeOf(x.dtype());
  return ir::Bitcast(x, size == 1   ? DType::kUInt8
                        : size == 2 ? DType::kInt16
                        : size == 4 ? DType::kInt32
                                    : DType::kInt64);
}

StridedWindow WindowOf(AtenCall& c, int first) { return {c.ints(first), c.ints(first + 1), c.integer(first + 2)}; }

Result View(AtenCall& c) {
  StridedWindow w = WindowOf(c, 1);
  if (LeftToTheHost(c, c.tensor(0), c.result_dtype())) return Result::Decline();
  Tensor source = Reinterpret(c.tensor(0), c.result_dtype());
  if (w.elements() != 0 && w.end() > source.elements()) return Result::Decline();
  return ReadWindow(source, w);
}

Result Update(AtenCall& c) {
  Tensor base = c.tensor(0), src = c.tensor(1);
  StridedWindow w = WindowOf(c, 2);
  if (src.dtype() != base.dtype()) src = AsBits(src);
  if (LeftToTheHost(c, base, src.dtype())) return Result::Decline();
  Tensor target = Reinterpret(base, src.dtype());
  if (LeftToTheHost(c, target, base.dtype())) return Result::Decline();
  size_t src_bytes = src.elements() * SizeOf(src.dtype());
  bool whole_bytes = size_t(target.elements()) * SizeOf(src.dtype()) == size_t(base.elements()) * SizeOf(base.dtype());
  if (!whole_bytes || (src_bytes != 0 && w.end() > target.elements())) return Result::Decline();
  Tensor written = WriteWindow(target, ir::Reshape(src, w.sizes), w);
  if (SizeOf(base.dtype()) == SizeOf(src.dtype())) return ir::Bitcast(written, base.dtype());
  return ir::Reshape(ir::Bitcast(Flat(written), base.dtype()), base.dims());
}

Result Copy(AtenCall& c) {
  Tensor src = c.tensor(0);
  if (!MayConvert(src.dtype(), c.result_dtype())) return Result::Decline();
  return src;
}

}  // namespace

void RegisterStorage(Registry& r) {
  r.Add("tpu::view", View, kAnyElement);
  r.Add("tpu::update", Update, kAnyElement);
  r.Add({"tpu::copy", "aten::_to_copy", "aten::clone", "aten::lift_fresh_copy"}, Copy, kAnyElement);
  // copy(self, src): src in self's dims and dtype, which are the result's.
  r.Add("aten::copy", [](AtenCall& c) -> Result { return c.tensor(1); }, kComplexToo);
}

}  // namespace tpu::aten

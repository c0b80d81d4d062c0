// Gathers and scatters. Indices are i64; those that PyTorch allows to be negative are wrapped here.
#include <numeric>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {

using ir::ScatterKind;

Tensor WrapIndex(Tensor index, int64_t size) {
  Tensor extent = index.emitter().Integer(index.dtype(), size);
  return ir::Select(index < 0, index + extent, index);
}

namespace {

Tensor Index(AtenCall& c, int i) { return c.as(i, DType::kInt64); }

// Sums of half types are kept in f32 while scattering.
Tensor Wide(Tensor x) { return ir::Convert(x, OpMath(x.dtype())); }

// An index is checked where it reads or writes an element. Where it has none to, the CPU's kernel checks it for some
// operators, which are left to that.
bool HasOnlyChecks(AtenCall& c, Tensor index) { return llvm::is_contained(c.result_dims(), 0) && index.elements() > 0; }

Result IndexSelect(AtenCall& c) {  // (x, dim, index)
  Tensor x = AtLeast1(c.tensor(0)), index = Flat(Index(c, 2));
  if (HasOnlyChecks(c, index)) return Result::Decline();
  return ir::Reshape(ir::Take(x, index, c.dim(1, x.rank())), c.result_dims());
}

Result Embedding(AtenCall& c) {  // (weight, indices)
  const Tensor index = Index(c, 1);
  if (HasOnlyChecks(c, index)) return Result::Decline();
  return ir::Take(c.tensor(0), index, 0);
}

Result EmbeddingBackward(AtenCall& c) {  // (grad, indices, num_weights, padding_idx, scale_grad_by_freq)
  if (c.boolean(4)) return Result::Decline();
  Tensor grad = Wide(c.tensor(0)), indices = Flat(Index(c, 1));
  int64_t width = grad.size(-1), padding = c.integer(3, -1);
  grad = ir::Reshape(grad, {indices.size(0), width});
  if (padding >= 0) {
    Tensor padded = ir::Eq(indices, c.emitter().Integer(DType::kInt64, padding));
    grad = ir::Select(ir::Unsqueeze(padded, 1), 0, grad);
  }
  Tensor base = c.emitter().Constant(grad.dtype(), 0, {c.integer(2), width});
  return ir::ScatterRows(ScatterKind::add, base, indices, grad, 0);
}

Result Gather(AtenCall& c) {  // (x, dim, index)
  Tensor x = AtLeast1(c.tensor(0)), index = AtLeast1(Index(c, 2));
  if (index.elements() == 0) return c.emitter().Constant(x.dtype(), 0, c.result_dims());
  return ir::Reshape(ir::TakeAlong(x, index, c.dim(1, x.rank())), c.result_dims());
}

// How a scatter combines what falls on one element: `mean` divides the sum by how many it is of.
struct Reduction {
  ScatterKind kind;
  bool mean = false;
  bool include_self = true;  // the base's element is one of them, and not only what stays where none falls
};

std::optional<Reduction> ReductionOf(const std::string& reduce, bool include_self) {
  if (reduce == "add" || reduce == "sum") return Reduction{ScatterKind::add, false, include_self};
  if (reduce == "multiply" || reduce == "prod") return Reduction{ScatterKind::mul, false, include_self};
  if (reduce == "mean") return Reduction{ScatterKind::add, true, include_self};
  if (reduce == "amax") return Reduction{ScatterKind::max, false, include_self};
  if (reduce == "amin") return Reduction{ScatterKind::min, false, include_self};
  return std::nullopt;
}

Tensor Identity(Emitter& e, ScatterKind kind, DType dtype) {
  if (kind == ScatterKind::max) return e.Lowest(dtype);
  if (kind == ScatterKind::min) return e.Highest(dtype);
  return e.Constant(dtype, kind == ScatterKind::mul ? 1 : 0);
}

// `scatter(kind, base, updates)` combines at the call's indices.
Tensor Combined(const Reduction& r, Tensor base, Tensor updates,
                llvm::function_ref<Tensor(ScatterKind, Tensor, Tensor)> scatter) {
  if (r.include_self && !r.mean) return scatter(r.kind, base, updates);
  Emitter& e = base.emitter();
  Tensor none = e.Integer(DType::kInt32, r.include_self ? 1 : 0, base.dims());
  Tensor count = scatter(ScatterKind::add, none, e.Integer(DType::kInt32, 1, updates.dims()));
  if (!r.include_self) base = ir::Select(count > 0, Identity(e, r.kind, base.dtype()), base);
  Tensor combined = scatter(r.kind, base, updates);
  if (!r.mean) return combined;
  Tensor divisor = ir::Convert(ir::Max(count, 1), base.dtype());
  return IsFloat(base.dtype()) ? combined / divisor : FloorDivide(combined, divisor);
}

// (base, dim, index, src) with src a tensor that covers index, or a number.
Result ScatterInto(AtenCall& c, const Reduction& r) {
  Tensor base = AtLeast1(c.tensor(0)), index = AtLeast1(Index(c, 2));
  if (index.elements() == 0) return c.tensor(0);
  if (HasOnlyChecks(c, index)) return Result::Decline();
  Tensor src = c.as(3, base.dtype());
  if (c.is_tensor(3)) {
    src = AtLeast1(src);
    src = ir::Slice(src, Shape(src.rank(), 0), index.dims(), Shape(src.rank(), 1));
  } else {
    src = ir::BroadcastTo(src, index.dims());
  }
  if (r.kind != ScatterKind::set) {
    base = Wide(base);
    src = Wide(src);
  }
  const int64_t dim = c.dim(1, base.rank());
  Tensor written = Combined(r, base, src, [&](ScatterKind kind, Tensor into, Tensor updates) {
    return ir::Scatter(kind, into, index, updates, dim);
  });
  return ir::Reshape(written, c.result_dims());
}

Result ScatterReduce(AtenCall& c) {  // (base, dim, index, src, reduce, include_self)
  std::optional<Reduction> r = ReductionOf(c.string(4), c.boolean(5, true));
  if (!r || ((r->mean || !r->include_self) && c.tensor(0).dtype() == DType::kBool)) return Result::Decline();
  return ScatterInto(c, *r);
}

Result IndexReduce(AtenCall& c) {  // (base, dim, index, source, reduce, include_self)
  std::optional<Reduction> r = ReductionOf(c.string(4), c.boolean(5, true));
  Tensor base = Wide(AtLeast1(c.tensor(0))), source = AtLeast1(c.as(3, base.dtype())), index = Flat(Index(c, 2));
  if (!r || base.dtype() == DType::kBool || HasOnlyChecks(c, index)) return Result::Decline();
  if (index.elements() == 0) return c.tensor(0);
  const int64_t dim = c.dim(1, base.rank());
  Tensor written = Combined(*r, base, source, [&](ScatterKind kind, Tensor into, Tensor updates) {
    return ir::ScatterRows(kind, into, index, updates, dim);
  });
  return ir::Reshape(written, c.result_dims());
}

Result IndexAdd(AtenCall& c) {  // (base, dim, index, source, alpha)
  Tensor base = Wide(AtLeast1(c.tensor(0))), source = AtLeast1(c.as(3, base.dtype()));
  if (base.dtype() == DType::kBool) return Result::Decline();
  if (c.has(4)) source = source * c.as(4, base.dtype());
  Tensor sum = ir::ScatterRows(ScatterKind::add, base, Flat(Index(c, 2)), source, c.dim(1, base.rank()));
  return ir::Reshape(sum, c.result_dims());
}

Result IndexCopy(AtenCall& c) {  // (base, dim, index, source)
  Tensor base = AtLeast1(c.tensor(0)), index = Flat(Index(c, 2));
  int64_t dim = c.dim(1, base.rank());
  Shape dims(base.dims());
  dims[dim] = index.size(0);
  Tensor written = ir::ScatterRows(ScatterKind::set, base, index, ir::Reshape(c.as(3, base.dtype()), dims), dim);
  return ir::Reshape(written, c.result_dims());
}

Result IndexFill(AtenCall& c) {  // (base, dim, index, value)
  Tensor base = AtLeast1(c.tensor(0));
  int64_t dim = c.dim(1, base.rank());
  Tensor index = WrapIndex(Flat(Index(c, 2)), base.size(dim));
  Shape dims(base.dims());
  dims[dim] = index.size(0);
  Tensor updates = ir::BroadcastTo(c.as(3, base.dtype()), dims);
  return ir::Reshape(ir::ScatterRows(ScatterKind::set, base, index, updates, dim), c.result_dims());
}

// x[i, j, None, ...] with integer tensors: the indexed dims merged into one, and the flat index into it.
struct Advanced {
  Shape indexed;       // dims of x that have an index
  Tensor flat;         // their flat index, of the dims that the indices broadcast to
  int64_t extent = 1;  // product of the indexed sizes
  bool adjacent = true;

  // Where the index's dims stand in x[...]: in place of the indexed dims when these are neighbours, else in front.
  int64_t position() const { return adjacent ? indexed[0] : 0; }
};

std::optional<Advanced> ReadIndices(AtenCall& c, Tensor x, llvm::ArrayRef<Tensor> indices) {
  Advanced a;
  Shape dims;
  for (size_t d = 0; d < indices.size(); ++d) {
    if (!indices[d]) continue;
    DType dtype = indices[d].dtype();
    if (dtype == DType::kBool || dtype == DType::kUInt8) return std::nullopt;
    if (!a.indexed.empty() && int64_t(d) != a.indexed.back() + 1) a.adjacent = false;
    a.indexed.push_back(d);
    std::optional<Shape> both = ir::BroadcastDims(dims, indices[d].dims());
    if (!both) return std::nullopt;
    dims = *both;
  }
  if (a.indexed.empty()) return std::nullopt;
  Tensor inside;  // of several: together they could be those of another element
  for (int64_t d : a.indexed) {
    Tensor index = ir::BroadcastTo(WrapIndex(ir::Convert(indices[d], DType::kInt64), x.size(d)), dims);
    if (a.indexed.size() > 1) {
      const Tensor here = (index >= 0) & (index < static_cast<double>(x.size(d)));
      inside = inside ? inside & here : here;
    }
    a.flat = a.flat ? a.flat * c.emitter().Integer(DType::kInt64, x.size(d)) + index : index;
    a.extent *= x.size(d);
  }
  if (inside) a.flat = ir::Select(inside, a.flat, -1);
  return a;
}

// x with its indexed dims merged into one, which stands at a.position().
Tensor Merged(Tensor x, const Advanced& a, Shape* permutation) {
  Shape others = OtherDims(x.rank(), a.indexed);
  *permutation = others;
  permutation->insert(permutation->begin() + a.position(), a.indexed.begin(), a.indexed.end());
  Shape dims;
  for (int64_t d : others) dims.push_back(x.size(d));
  dims.insert(dims.begin() + a.position(), a.extent);
  return ir::Reshape(ir::Transpose(x, *permutation), dims);
}

Result IndexTensor(AtenCall& c) {  // (x, indices)
  Tensor x = c.tensor(0);
  std::optional<Advanced> a = ReadIndices(c, x, c.tensors(1));
  if (!a) return Result::Decline();
  Shape permutation;
  return ir::Take(Merged(x, *a, &permutation), a->flat, a->position());
}

// x[:, mask] = values or += values, where the mask numbers dims from `first` on. What lies under it is not counted:
// values that are the same for all of it need no count.
Result MaskedPut(AtenCall& c, Tensor mask, int64_t first) {
  Tensor x = c.tensor(0), values = c.as(2, x.dtype());
  const int64_t behind = x.rank() - first - mask.rank();
  Shape of_mask(mask.dims()), dims(values.dims());
  of_mask.resize(mask.rank() + behind, 1);
  if (values.elements() == 1) {
    dims.clear();
  } else if (values.rank() > behind) {
    auto counted = dims.end() - behind - 1;
    if (*counted != 1 || mask.rank() == 0) return Result::Decline();
    dims.insert(counted, mask.rank() - 1, 1);
  }
  const bool accumulate = c.boolean(3);
  if (accumulate && x.dtype() == DType::kBool) return Result::Decline();
  if (ir::BroadcastDims(dims, x.dims()) != Shape(x.dims())) return Result::Decline();
  values = ir::Reshape(values, dims);
  return ir::Select(ir::Reshape(mask, of_mask), accumulate ? x + values : values, x);
}

Result IndexPut(AtenCall& c) {  // (x, indices, values, accumulate)
  Tensor x = c.tensor(0);
  llvm::SmallVector<Tensor> indices = c.tensors(1);
  const auto given = [](Tensor t) { return static_cast<bool>(t); };
  const auto first = llvm::find_if(indices, given);
  if (llvm::count_if(indices, given) == 1 && first->dtype() == DType::kBool) {
    return MaskedPut(c, *first, first - indices.begin());
  }
  std::optional<Advanced> a = ReadIndices(c, x, indices);
  bool accumulate = c.boolean(3);
  if (!a || (accumulate && x.dtype() == DType::kBool)) return Result::Decline();
  if (accumulate) x = Wide(x);
  Shape permutation;
  Tensor base = Merged(x, *a, &permutation);
  Shape dims(base.dims());
  dims.erase(dims.begin() + a->position());
  dims.insert(dims.begin() + a->position(), a->flat.dims().begin(), a->flat.dims().end());
  Tensor values = ir::BroadcastTo(c.as(2, x.dtype()), dims);
  Shape rows(base.dims());
  rows[a->position()] = a->flat.elements();
  Tensor written = ir::ScatterRows(accumulate ? ScatterKind::add : ScatterKind::set, base, Flat(a->flat),
                                   ir::Reshape(values, rows), a->position());
  Shape split, inverse(permutation.size());
  for (auto [i, d] : llvm::enumerate(permutation)) {
    split.push_back(x.size(d));
    inverse[d] = i;
  }
  return ir::Transpose(ir::Reshape(written, split), inverse);
}

Result Put(AtenCall& c) {  // (x, index, source, accumulate), of flat elements
  const bool accumulate = c.boolean(3);
  Tensor x = Flat(c.tensor(0)), index = Flat(Index(c, 1));
  if (accumulate && x.dtype() == DType::kBool) return Result::Decline();
  if (index.elements() == 0) return c.tensor(0);
  if (accumulate) x = Wide(x);
  const Tensor written = ir::Scatter(accumulate ? ScatterKind::add : ScatterKind::set, x, WrapIndex(index, x.size(0)),
                                     Flat(c.as(2, x.dtype())), 0);
  return ir::Reshape(written, c.result_dims());
}

// histc(x, bins, min, max): how many elements lie in each of `bins` equal parts of [min, max]. That of a range which
// the data decide is left to the host.
Result Histogram(AtenCall& c) {
  if (!c.is_static(2) || !c.is_static(3) || !(c.real(2) < c.real(3))) return Result::Decline();
  const int64_t bins = c.integer(1, 100);
  Tensor x = Flat(c.tensor(0));
  const Tensor least = c.emitter().Constant(x.dtype(), c.real(2)), most = c.emitter().Constant(x.dtype(), c.real(3));
  const Tensor within = (x >= least) & (x <= most);
  const Tensor scaled = (x - least) * static_cast<double>(bins) / (most - least);
  const Tensor bin = ir::Min(ir::Convert(ir::Select(within, scaled, 0), DType::kInt64), static_cast<double>(bins - 1));
  const Tensor none = c.emitter().Constant(DType::kInt64, 0, {bins});
  return ir::Scatter(ScatterKind::add, none, bin, ir::Convert(within, DType::kInt64), 0);
}

}  // namespace

void RegisterIndex(Registry& r) {
  r.Add("aten::index_select", IndexSelect, kAnyElement);
  r.Add("aten::embedding", Embedding, kAnyElement);
  r.Add("aten::embedding_dense_backward", EmbeddingBackward);
  r.Add("aten::gather", Gather);
  r.Add({"aten::scatter.src", "aten::scatter.value"},
        [](AtenCall& c) -> Result { return ScatterInto(c, {ScatterKind::set}); });
  r.Add("aten::scatter_add", [](AtenCall& c) -> Result { return ScatterInto(c, {ScatterKind::add}); });
  r.Add({"aten::scatter.reduce", "aten::scatter.value_reduce", "aten::scatter_reduce.two"}, ScatterReduce);
  r.Add("aten::index_add", IndexAdd);
  r.Add("aten::index_reduce", IndexReduce);
  r.Add("aten::histc", Histogram, kStaticScalars);
  r.Add("aten::index_copy", IndexCopy);
  r.Add({"aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor"}, IndexFill);
  r.Add({"aten::index.Tensor", "aten::_unsafe_index.Tensor"}, IndexTensor);
  r.Add({"aten::index_put", "aten::_index_put_impl", "aten::_unsafe_index_put"}, IndexPut);
  r.Add("aten::put", Put);
  r.Add("aten::take", [](AtenCall& c) -> Result {
    Tensor x = Flat(c.tensor(0));
    return ir::Take(x, WrapIndex(Index(c, 1), x.size(0)), 0);
  });
}

}  // namespace tpu::aten

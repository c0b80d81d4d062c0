#include "compiler/stablehlo/pad_values.h"

#include <utility>

namespace tpu::stablehlo {

using ir::Tensor;

PadValues::PadValues(mlir::func::FuncOp function, absl::Span<const SizePoint> points)
    : builder_(function.getBody()), e_(builder_, function.getLoc()), points_(points) {
  const auto size = e_.Type(DType::kInt64, {});
  for (size_t s = 0; s < points.front().size(); ++s) {
    const unsigned last = function.getNumArguments();
    (void)function.insertArgument(last, size, {}, function.getLoc());
    sizes_.push_back(e_.Wrap(function.getArgument(last)));
  }
}

void PadValues::Refuse(std::string why) {
  if (status_.ok()) status_ = absl::FailedPreconditionError(why);
}

Tensor PadValues::Number(const Numbers& numbers) {
  Tensor& number = numbers_[numbers];
  if (number) return number;
  if (IsFixed(numbers)) return number = e_.Integer(DType::kInt64, numbers.front());
  const std::optional<Polynomial> polynomial =
      Polynomial::Through(points_, absl::MakeConstSpan(numbers.data(), numbers.size()));
  if (!polynomial) {
    Refuse("a number follows no polynomial of the sizes");
    return number = e_.Integer(DType::kInt64, numbers.back());
  }
  if (polynomial->times != 0) {
    const Tensor along = sizes_[polynomial->place] * e_.Integer(DType::kInt64, polynomial->times);
    return number = along + e_.Integer(DType::kInt64, polynomial->terms[0]);
  }
  for (size_t term = 0; term < polynomial->terms.size(); ++term) {
    if (polynomial->terms[term] == 0) continue;
    Tensor product = e_.Integer(DType::kInt64, polynomial->terms[term]);
    for (size_t i = term % Polynomial::kPowers; i > 0; --i) product = product * sizes_[0];
    for (size_t j = term / Polynomial::kPowers; j > 0; --j) product = product * sizes_[1];
    number = number ? number + product : product;
  }
  return number;
}

Tensor PadValues::Mask(const Factors& factors) {
  Tensor& mask = masks_[factors];
  if (mask) return mask;
  ir::Shape dims;
  for (const Numbers& factor : factors) dims.push_back(factor.back());
  for (size_t f = 0; f < factors.size(); ++f) {
    if (IsFixed(factors[f])) continue;
    const Tensor there = e_.Iota(DType::kInt64, {dims[f]}, 0) < Number(factors[f]);
    const Tensor along = ir::BroadcastAlong(there, dims, {static_cast<int64_t>(f)});
    mask = mask ? mask & along : along;
  }
  return mask = ir::Flat(mask);
}

Tensor PadValues::Fill(Tensor x, const Layout& layout, llvm::ArrayRef<int64_t> dims, Tensor fill) {
  Tensor mask;
  for (const int64_t d : dims) {
    const OpenDim& dim = layout[d];
    if (!dim.open()) continue;
    const Tensor along = ir::BroadcastAlong(Mask(dim.alike ? Factors{dim.size} : dim.factors), x.dims(), {d});
    mask = mask ? mask & along : along;
  }
  return mask ? ir::Select(mask, x, ir::BroadcastTo(fill, x.dims())) : x;
}

Tensor PadValues::FillAll(Tensor x, const Layout& layout, Tensor fill) {
  llvm::SmallVector<int64_t> dims;
  for (int64_t d = 0; d < x.rank(); ++d) dims.push_back(d);
  return Fill(x, layout, dims, fill);
}

// Where an element stands is its place among those that are there, counted by the true sizes; from that the factors of
// `from` say where it lies.
Tensor PadValues::Map(const Factors& from, const Factors& to) {
  Tensor& map = maps_[{from, to}];
  if (map) return map;
  ir::Shape dims;
  for (const Numbers& factor : to) dims.push_back(factor.back());
  Tensor place;
  Numbers inner(points(), 1);
  for (size_t f = to.size(); f-- > 0; inner = Times(std::move(inner), to[f])) {
    const Tensor step = e_.Iota(DType::kInt64, dims, static_cast<int64_t>(f)) * Number(inner);
    place = place ? place + step : step;
  }
  place = ir::Flat(place);
  Numbers behind = Product(from, points());
  const int64_t elements = behind.back();
  int64_t lies = elements;
  Tensor where;
  for (const Numbers& factor : from) {
    for (size_t i = 0; i < behind.size(); ++i) behind[i] /= factor[i];
    lies /= factor.back();
    const Tensor size = Number(behind);
    const Tensor step = ir::Div(place, size) * static_cast<double>(lies);
    where = where ? where + step : step;
    place = ir::Rem(place, size);
  }
  return map = ir::Min(where, static_cast<double>(elements - 1));
}

Tensor PadValues::Move(Tensor x, int64_t dim, const Factors& from, const Factors& to) {
  if (from == to) return x;
  const ir::Shape dims(x.dims());
  Factors source = from, target = to;
  // Rows of a fixed length, which both end with, move whole.
  int64_t row = 1;
  while (!source.empty() && !target.empty() && IsFixed(target.back())) {
    const int64_t size = target.back().back();
    bool divides = true;
    for (const int64_t n : source.back()) divides &= n % size == 0;
    if (!divides) break;
    for (int64_t& n : source.back()) n /= size;
    if (IsAll(source.back(), 1)) source.pop_back();
    target.pop_back();
    row *= size;
  }
  int64_t outer = 1, inner = row;
  for (int64_t d = 0; d < x.rank(); ++d) (d < dim ? outer : d > dim ? inner : row) *= d == dim ? 1 : dims[d];
  if (source == target) return x;
  const int64_t moved = Product(source, points()).back();
  x = ir::Take(ir::Reshape(x, {outer, moved, inner}), Map(source, target), 1);
  return ir::Reshape(x, dims);
}

Tensor PadValues::TakeWithin(Tensor x, int64_t dim, Tensor positions) {
  return ir::Take(x, ir::Min(ir::Max(positions, 0.0), static_cast<double>(x.size(dim) - 1)), dim);
}

std::pair<Tensor, Tensor> PadValues::PutAt(Tensor x, int64_t dim, const Numbers& length, const Numbers& start,
                                           int64_t size) {
  const Tensor place = e_.Iota(DType::kInt64, {size}, 0) - Number(start);
  return {TakeWithin(x, dim, place), ir::Ge(place, 0.0) & ir::Lt(place, Number(length))};
}

}  // namespace tpu::stablehlo

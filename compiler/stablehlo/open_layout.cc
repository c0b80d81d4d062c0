#include "compiler/stablehlo/open_layout.h"

#include <algorithm>
#include <utility>

namespace tpu::stablehlo {
namespace {

// A factor, or a part of a dim along which the value is the same.
struct Part {
  Numbers size;
  bool alike = false;
};

bool Divides(const Numbers& a, const Numbers& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (b[i] % a[i] != 0) return false;
  }
  return true;
}

Numbers Over(Numbers a, const Numbers& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] /= b[i];
  return a;
}

bool CanSplit(const Part& part, const Numbers& size) {
  return Divides(size, part.size) && (part.alike || (IsFixed(part.size) && IsFixed(size)));
}

// The parts, in order, as dims of these sizes; nothing where a factor would have to be cut.
std::optional<Layout> Deal(std::vector<Part> parts, llvm::ArrayRef<Numbers> sizes) {
  Layout dims;
  size_t next = 0;
  for (const Numbers& size : sizes) {
    Numbers rest = size;
    Factors factors;
    bool alike = true;
    while (!IsAll(rest, 1)) {
      if (next == parts.size()) return std::nullopt;
      Part& part = parts[next];
      Numbers taken = part.size;
      if (Divides(part.size, rest)) {
        ++next;
      } else if (CanSplit(part, rest)) {
        taken = rest;
        part.size = Over(part.size, rest);
      } else {
        return std::nullopt;
      }
      rest = Over(rest, taken);
      alike &= part.alike;
      factors.push_back(std::move(taken));
    }
    dims.push_back(alike ? AlikeDim(size) : DimOf(std::move(factors), size));
  }
  return dims;
}

std::vector<Part> PartsOf(const Layout& layout) {
  std::vector<Part> parts;
  for (const OpenDim& dim : layout) {
    if (IsAll(dim.size, 1)) continue;
    if (dim.alike) parts.push_back({dim.size, true});
    for (const Numbers& factor : dim.factors) parts.push_back({factor, false});
  }
  return parts;
}

// Whether `a` is the smaller run, to which the next part belongs.
bool Behind(const Numbers& a, const Numbers& b) { return a.back() != b.back() ? a.back() < b.back() : a < b; }

}  // namespace

bool IsFixed(const Numbers& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n == numbers.front(); });
}

bool IsAll(const Numbers& numbers, int64_t n) {
  return std::all_of(numbers.begin(), numbers.end(), [&](int64_t number) { return number == n; });
}

Numbers Times(Numbers a, const Numbers& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] *= b[i];
  return a;
}

Numbers Plus(Numbers a, const Numbers& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

Numbers Product(llvm::ArrayRef<Numbers> factors, size_t points) {
  Numbers product(points, 1);
  for (const Numbers& factor : factors) product = Times(std::move(product), factor);
  return product;
}

OpenDim PlainDim(const Numbers& size) { return DimOf({size}, size); }

OpenDim AlikeDim(const Numbers& size) { return {size, true, {}}; }

OpenDim DimOf(Factors factors, const Numbers& size) {
  OpenDim dim{size, false, {}};
  for (Numbers& factor : factors) {
    if (IsAll(factor, 1)) continue;
    if (IsFixed(factor) && !dim.factors.empty() && IsFixed(dim.factors.back())) {
      dim.factors.back() = Times(std::move(dim.factors.back()), factor);
    } else {
      dim.factors.push_back(std::move(factor));
    }
  }
  dim.alike = dim.factors.empty();
  return dim;
}

std::optional<Reshaped> Reshape(const Layout& layout, llvm::ArrayRef<Numbers> dims) {
  Reshaped result;
  if (std::any_of(dims.begin(), dims.end(), [](const Numbers& size) { return IsAll(size, 0); })) {  // no elements
    for (const Numbers& size : dims) result.layout.push_back(PlainDim(size));
    return result;
  }
  const std::vector<Part> parts = PartsOf(layout);
  size_t part = 0, dim = 0;
  while (part < parts.size() || dim < dims.size()) {
    const size_t first_part = part, first_dim = dim;
    const size_t points = part < parts.size() ? parts[part].size.size() : dims[dim].size();
    Numbers of_parts(points, 1), of_dims(points, 1);
    if (part < parts.size()) of_parts = parts[part++].size;
    while (of_parts != of_dims || dim == first_dim) {
      if (dim == first_dim || Behind(of_dims, of_parts)) {
        if (dim == dims.size()) return std::nullopt;
        of_dims = Times(std::move(of_dims), dims[dim++]);
      } else {
        if (part == parts.size()) return std::nullopt;
        of_parts = Times(std::move(of_parts), parts[part++].size);
      }
    }
    const std::vector<Part> run(parts.begin() + first_part, parts.begin() + part);
    const llvm::ArrayRef<Numbers> sizes = dims.slice(first_dim, dim - first_dim);
    Regrouped regrouped{of_parts.back(), false, {}, {}};
    std::optional<Layout> dealt = Deal(run, sizes);
    if (!dealt) {
      dealt.emplace();
      for (const Numbers& size : sizes) dealt->push_back(PlainDim(size));
      for (const Part& p : run) regrouped.from.push_back(p.size);
      regrouped.to.assign(sizes.begin(), sizes.end());
      regrouped.moves = !IsFixed(of_parts);
    }
    result.layout.append(dealt->begin(), dealt->end());
    result.runs.push_back(std::move(regrouped));
  }
  return result;
}

}  // namespace tpu::stablehlo

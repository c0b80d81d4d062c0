#include "runtime/pjrt/padded.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/bytes.h"

namespace tpu::pjrt {
namespace {

constexpr std::string_view kMagic = "tpu-stablehlo-padded-2\n";

void Write(ByteWriter& w, const std::vector<PaddedDims>& values) {
  w.U64(values.size());
  for (const PaddedDims& dims : values) {
    w.U64(dims.size());
    for (const Polynomial& dim : dims) dim.Write(w);
  }
}

bool Read(ByteReader& r, std::vector<PaddedDims>& values, size_t sizes) {
  values.resize(r.Count(8));
  for (PaddedDims& dims : values) {
    dims.resize(r.Count(8));
    for (Polynomial& dim : dims) {
      if (!dim.Read(r, sizes)) return false;
    }
  }
  return r.ok();
}

}  // namespace

std::string PaddedModule::Serialize() const {
  ByteWriter w;
  w.String(module.Serialize());
  w.I64s(range.least);
  w.I64s(range.most);
  Write(w, inputs);
  Write(w, outputs);
  return std::string(kMagic) + std::move(w).Take();
}

absl::StatusOr<PaddedModule> PaddedModule::Parse(std::string_view bytes) {
  const auto bad = [] {
    return absl::InvalidArgumentError("padded stablehlo program: damaged, or of another version");
  };
  if (bytes.substr(0, kMagic.size()) != kMagic) return bad();
  ByteReader r(bytes.substr(kMagic.size()));
  PaddedModule padded;
  absl::StatusOr<Module> module = Module::Parse(r.String());
  if (!module.ok()) return module.status();
  padded.module = *std::move(module);
  padded.range.least = r.I64s();
  padded.range.most = r.I64s();
  const size_t sizes = padded.range.most.size();
  const bool sound = Read(r, padded.inputs, sizes) && Read(r, padded.outputs, sizes) && r.AtEnd() && sizes >= 1 &&
                     padded.range.least.size() == sizes && padded.range.Holds(padded.range.least);
  if (!sound) return bad();
  return padded;
}

std::vector<TensorType> TypesAt(absl::Span<const TensorType> padded, absl::Span<const PaddedDims> dims,
                                const SizePoint& sizes) {
  std::vector<TensorType> types(padded.begin(), padded.begin() + static_cast<std::ptrdiff_t>(dims.size()));
  for (size_t v = 0; v < dims.size(); ++v) {
    for (size_t d = 0; d < dims[v].size(); ++d) types[v].dims[d] = dims[v][d].At(sizes);
  }
  return types;
}

void CopyCorner(const TensorType& from, const void* source, const TensorType& to, void* destination) {
  const size_t rank = from.dims.size(), element = SizeOf(from.dtype);
  Dims common(rank);
  for (size_t d = 0; d < rank; ++d) common[d] = std::min(from.dims[d], to.dims[d]);
  if (NumElements(common) == 0) return;
  // Rows as long as both have them in one run.
  size_t inner = rank, run = element;
  while (inner > 0 && (inner == rank || from.dims[inner] == to.dims[inner]))
    run *= static_cast<size_t>(common[--inner]);
  Dims at(inner, 0);
  const auto offset = [&](const TensorType& type) {
    size_t position = 0;
    for (size_t d = 0; d < rank; ++d) {
      position = position * static_cast<size_t>(type.dims[d]) + (d < inner ? static_cast<size_t>(at[d]) : 0);
    }
    return position * element;
  };
  while (true) {
    std::memcpy(static_cast<char*>(destination) + offset(to), static_cast<const char*>(source) + offset(from), run);
    size_t d = inner;
    while (d > 0 && ++at[d - 1] == common[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace tpu::pjrt

// The program format "stablehlo-padded": a module for values that are padded up to their largest sizes, and which sizes
// those may have.
//
// Written by compiler/stablehlo (pad_sizes.h says what the module computes), completed and loaded by PjrtDevice. Plain
// data; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/pjrt/module.h"
#include "runtime/polynomial.h"
#include "runtime/tensor_type.h"

namespace tpu::pjrt {

inline constexpr const char* kPaddedFormat = "stablehlo-padded";

using PaddedDims = std::vector<Polynomial>;  // of a value, by the sizes

struct PaddedModule {
  Module module;                            // its last arguments are the sizes, an i64 each
  SizeRange range;                          // that it serves
  std::vector<PaddedDims> inputs, outputs;  // the program's, without the sizes

  std::string Serialize() const;
  static absl::StatusOr<PaddedModule> Parse(std::string_view bytes);
};

// The types of values at these sizes: of `padded`, with the dims that they have there.
std::vector<TensorType> TypesAt(absl::Span<const TensorType> padded, absl::Span<const PaddedDims> dims,
                                const SizePoint& sizes);

// Row-major elements of one type to where they stand in another of as many dims, each larger or each smaller; what is
// only in `to` stays as it is.
void CopyCorner(const TensorType& from, const void* source, const TensorType& to, void* destination);

}  // namespace tpu::pjrt

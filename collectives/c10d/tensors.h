// Tensors as what a collective reads and makes: values with offsets, and new values that are written to tensors.
//
// Used by the process group only, on the caller's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "jit/value.h"

namespace tpu {

// Elements that a collective reads: pieces that lie one after the other in a value's buffer.
struct Source {
  ValueRef value;
  int64_t offset = 0;           // bytes
  std::vector<int64_t> pieces;  // bytes
};

// A tensor that a collective writes, whole; pieces of it as of a Source. Where `in_place` is the index of a source
// whose buffer nobody else holds by then, it becomes the result's, and the elements already there stay.
struct Target {
  at::Tensor tensor;
  std::vector<int64_t> pieces;
  int in_place = -1;
};

// The tensor's elements in `pieces` equal pieces, or in the given ones. A contiguous tensor is read where it lies in
// its storage.
Source ReadTensor(const at::Tensor& tensor, int pieces = 1);
Source ReadTensor(const at::Tensor& tensor, std::vector<int64_t> pieces);
Target WriteTensor(const at::Tensor& tensor, int pieces = 1);
Target WriteTensor(const at::Tensor& tensor, std::vector<int64_t> pieces);

// `input` is to be read, and `output` to be written, which `input` may be a part of. Reads the whole storage then, so
// that the collective can run in it.
void ReadPartOf(const at::Tensor& output, const at::Tensor& input, int pieces, std::vector<Source>& sources,
                std::vector<Target>& targets);

}  // namespace tpu

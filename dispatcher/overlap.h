// Which tensors of a call share memory with those that it writes. The CPU's kernels refuse some such calls and take
// others: that they do is part of what a call means (words of its own), and of what its stand-ins are like.
//
// Asked for every call that writes arguments, so nothing but a mark on each storage is touched where nothing is shared.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "dispatcher/calls.h"

namespace tpu {

// Two tensors of a call, by their places among all of its tensors, of which at least one is written.
struct Overlap {
  // Some of each other's elements, the same ones, one tensor twice; elements with gaps in one region, which PyTorch
  // does not look into.
  enum class Kind { kPartial, kFull, kSameTensor, kPerhaps };

  uint32_t first, second;  // first < second
  Kind kind;

  uint64_t word() const { return uint64_t{first} << 32 | uint64_t{second} << 2 | static_cast<uint64_t>(kind); }
};

using Overlaps = absl::InlinedVector<Overlap, 2>;

Overlaps FindOverlaps(const Operator& op, at::ArrayRef<c10::IValue> arguments);

// Tells autograd that the operator has written the tensor. It sees that itself but for lists.
void CountWrite(const Operator& op, const at::Tensor& written);

// Whether the call comes back to memory that it wrote: lists are written one tensor after the other, and a later one
// reads what the ones before it left.
bool ReadsWhatItWrote(const Operator& op, at::ArrayRef<c10::IValue> arguments);

// Whether a tensor that the call writes has elements in one place (it is expanded, or windows that overlap).
bool WritesOverItself(const Operator& op, at::ArrayRef<c10::IValue> arguments);

}  // namespace tpu

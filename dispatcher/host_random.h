// Random operators at tier 0: the numbers that compiled code gives (compiler/aten/random.cc says which), bit for bit,
// so that nobody waits for a compile to draw.
//
// Called by RunCall on stream threads. Owns nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "dispatcher/calls.h"
#include "jit/engine.h"

namespace tpu {

// True when the operator draws as compiled code does; others take numbers from ATen's generator.
bool DrawsPhilox(const Call& call);
// Its results, contiguous, of call.results' dims; element types are still those that it is computed in. `tensor(i)` is
// operand i as a CPU tensor.
std::vector<at::Tensor> DrawPhilox(const Call& call, absl::Span<const KernelInput> inputs,
                                   absl::FunctionRef<at::Tensor(int operand)> tensor);

}  // namespace tpu

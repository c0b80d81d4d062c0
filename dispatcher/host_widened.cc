#include "dispatcher/host_widened.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>

#include "runtime/machine.h"

namespace tpu {
namespace {

bool HoldsType(const c10::IValue& v, c10::ScalarType type) {
  return v.isTensor() && v.toTensor().defined() && v.toTensor().scalar_type() == type;
}

// Which type of 16 bits the floats are of; nothing where there are none, or others besides, which is an error.
std::optional<c10::ScalarType> NarrowType(const torch::jit::Stack& stack) {
  std::optional<c10::ScalarType> narrow;
  for (const c10::IValue& v : stack) {
    if (!v.isTensor() || !v.toTensor().defined() || !v.toTensor().is_floating_point()) continue;
    const c10::ScalarType type = v.toTensor().scalar_type();
    if (type != c10::kHalf && type != c10::kBFloat16) return std::nullopt;
    if (narrow && *narrow != type) return std::nullopt;
    narrow = type;
  }
  return narrow;
}

// Whether ATen's kernel takes several times as long as in f32: a convolution of what the processor doesn't multiply.
bool IsSlow(const c10::OperatorHandle& op, c10::ScalarType type) {
  const std::string& name = op.schema().name();
  const bool convolves = name == "aten::convolution" || name == "aten::convolution_backward";
  return convolves && (type == c10::kHalf || !UsableInstructions().avx512_bf16);
}

// False where there is none for f32 either.
bool CallInF32(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::ScalarType type) {
  const torch::jit::Stack narrow = stack;
  ConvertTensors(stack, type, c10::kFloat);
  const torch::jit::Stack wide = stack;
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    stack = narrow;
    return false;
  }
  ConvertTensors(stack, c10::kFloat, type);
  for (size_t i = 0; i < narrow.size(); ++i) {
    const auto* alias = op.schema().arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite() || !HoldsType(narrow[i], type)) continue;
    const at::Tensor written = wide[i].toTensor();
    narrow[i].toTensor().resize_(written.sizes()).copy_(written);
  }
  return true;
}

}  // namespace

void ConvertTensors(torch::jit::Stack& stack, c10::ScalarType from, c10::ScalarType to) {
  for (c10::IValue& v : stack) {
    if (HoldsType(v, from)) v = v.toTensor().to(to);
  }
}

void CallWidening(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const std::optional<c10::ScalarType> narrow = NarrowType(stack);
  if (!narrow) return op.callBoxed(stack);
  if (IsSlow(op, *narrow) && CallInF32(op, stack, *narrow)) return;
  const torch::jit::Stack arguments = stack;
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    stack = arguments;
    if (!CallInF32(op, stack, *narrow)) throw;
  }
}

}  // namespace tpu

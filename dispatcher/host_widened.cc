#include "dispatcher/host_widened.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace tpu {
namespace {

bool HoldsType(const c10::IValue& v, c10::ScalarType type) {
  return v.isTensor() && v.toTensor().defined() && v.toTensor().scalar_type() == type;
}

bool IsNarrow(const c10::IValue& v) { return HoldsType(v, c10::kHalf) || HoldsType(v, c10::kBFloat16); }

// False where there is none for f32 either.
bool CallInF32(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const torch::jit::Stack narrow = stack;
  const c10::ScalarType type = std::find_if(narrow.begin(), narrow.end(), IsNarrow)->toTensor().scalar_type();
  for (c10::IValue& v : stack) {
    if (IsNarrow(v)) v = v.toTensor().to(c10::kFloat);
  }
  const torch::jit::Stack wide = stack;
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    return false;
  }
  for (c10::IValue& v : stack) {
    if (HoldsType(v, c10::kFloat)) v = v.toTensor().to(type);
  }
  for (size_t i = 0; i < narrow.size(); ++i) {
    const auto* alias = op.schema().arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite() || !IsNarrow(narrow[i])) continue;
    const at::Tensor written = wide[i].toTensor();
    narrow[i].toTensor().resize_(written.sizes()).copy_(written);
  }
  return true;
}

}  // namespace

void CallWidening(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (std::none_of(stack.begin(), stack.end(), IsNarrow)) return op.callBoxed(stack);
  const torch::jit::Stack arguments = stack;
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    stack = arguments;
    if (!CallInF32(op, stack)) throw;
  }
}

}  // namespace tpu

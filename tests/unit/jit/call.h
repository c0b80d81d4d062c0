// Calls of the fake operators that these tests record.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compiler/fragment.h"

namespace tpu {

// Of so many operands of one type, which is also the result's and outlives the call.
inline std::shared_ptr<Call> MakeCall(const std::string& op, int operands, const TensorType& type) {
  auto call = std::make_shared<Call>();
  call->op = op;
  call->operands.assign(operands, {type, false});
  call->results = {type};
  call->value_types = {&type};
  call->result_bytes = type.bytes();
  return call;
}

}  // namespace tpu

// A compiled fragment as plain data: what goes to disk and what a Device loads.
//
// Made by a compiler backend on any thread, never changed afterwards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/tensor_type.h"

namespace tpu {

struct Program {
  std::string format;  // the backend that made it and the device kind that loads it: "host", "stablehlo"
  std::string bytes;   // format's own encoding
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;
};

}  // namespace tpu

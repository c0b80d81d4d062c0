// The program format "stablehlo": what a PJRT plugin compiles, and, once it has, the plugin's own executable.
//
// Written by compiler/stablehlo, completed and loaded by PjrtDevice. Plain data; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tpu::pjrt {

inline constexpr const char* kFormat = "stablehlo";

struct Module {
  // Where an output of the program comes from: a result of the module, or an input that is returned as it is.
  struct Output {
    bool is_input = false;
    uint32_t index = 0;
    friend bool operator==(const Output&, const Output&) = default;
  };

  std::string text;        // StableHLO
  std::string executable;  // the plugin's serialisation of the compiled text; empty: not compiled yet
  std::vector<Output> outputs;
  uint32_t results = 0;         // of the module, less the one below
  bool checked = false;         // after them comes one of i1: an index was out of range
  std::vector<int64_t> donors;  // for each result the input that it may be written over, or -1 (the text says it too)

  std::string Serialize() const;
  static absl::StatusOr<Module> Parse(std::string_view bytes);
};

}  // namespace tpu::pjrt

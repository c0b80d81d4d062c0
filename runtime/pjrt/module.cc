#include "runtime/pjrt/module.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "runtime/bytes.h"

namespace tpu::pjrt {
namespace {

constexpr std::string_view kMagic = "tpu-stablehlo-1\n";

}  // namespace

std::string Module::Serialize() const {
  ByteWriter w;
  w.String(text);
  w.String(executable);
  w.U64(outputs.size());
  for (const Output& output : outputs) {
    w.U64(output.is_input);
    w.U64(output.index);
  }
  w.U64(results);
  w.U64(checked);
  w.I64s(donors);
  return std::string(kMagic) + std::move(w).Take();
}

absl::StatusOr<Module> Module::Parse(std::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError("stablehlo program: wrong magic or version");
  }
  ByteReader r(bytes.substr(kMagic.size()));
  Module module;
  module.text = r.String();
  module.executable = r.String();
  module.outputs.resize(r.Count(16));
  for (Output& output : module.outputs) {
    output.is_input = r.U64() != 0;
    output.index = static_cast<uint32_t>(r.U64());
  }
  module.results = static_cast<uint32_t>(r.U64());
  module.checked = r.U64() != 0;
  module.donors = r.I64s();
  bool sound = r.ok() && r.AtEnd() && module.donors.size() == module.results;
  std::vector<bool> returned(sound ? module.results : 0);
  for (const Output& output : module.outputs) {
    if (output.is_input) continue;
    sound &= output.index < returned.size();
    if (sound) returned[output.index] = true;
  }
  if (!sound || std::find(returned.begin(), returned.end(), false) != returned.end()) {
    return absl::InvalidArgumentError("stablehlo program: cut short, or a field has no such value");
  }
  return module;
}

}  // namespace tpu::pjrt

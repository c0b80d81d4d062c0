#include "compiler/tuning.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tpu {
namespace {

constexpr std::pair<const char*, int Tuning::*> kKnobs[] = {
    {"products", &Tuning::products}, {"convolutions", &Tuning::convolutions},
    {"streams", &Tuning::streams},   {"step_ns", &Tuning::step_ns},
    {"prefetch", &Tuning::prefetch}, {"registers", &Tuning::registers},
    {"task_us", &Tuning::task_us},   {"tile", &Tuning::tile},
};

}  // namespace

int UsualPrefetch() {
  static const bool intel = __builtin_cpu_is("intel");
  return intel ? 2048 : 0;
}

std::string Tuning::ToString() const {
  std::string text;
  for (const auto& [name, knob] : kKnobs) {
    if (this->*knob != Tuning().*knob) absl::StrAppend(&text, text.empty() ? "" : " ", name, "=", this->*knob);
  }
  return text;
}

std::optional<Tuning> Tuning::Parse(std::string_view text) {
  Tuning tuning;
  for (absl::string_view word : absl::StrSplit(absl::string_view(text.data(), text.size()), ' ', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    bool known = false;
    for (const auto& [name, knob] : kKnobs) {
      if (parts.first == name) known = absl::SimpleAtoi(parts.second, &(tuning.*knob));
    }
    if (!known) return std::nullopt;
  }
  return tuning;
}

}  // namespace tpu

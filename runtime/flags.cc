#include "runtime/flags.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tpu {
namespace {

struct Size {
  int64_t Flags::* member;
};
struct Integer {
  int Flags::* member;
  int least;
  int most = std::numeric_limits<int>::max();
};
struct Share {
  double Flags::* member;
};
struct Choice {
  std::string Flags::* member;
  const char* choices;  // ',' between; null: any text
};

struct Declaration {
  const char* name;
  const char* default_value;
  const char* meaning;
  std::variant<Size, Integer, Share, Choice> kind;
};

const Declaration kDeclarations[] = {
    {"TORCH_TPU_PLUGIN", "",
     "PJRT plugin: libtpu, cpu, cuda or a path; host: the embedded device; empty: libtpu where there are TPU chips",
     Choice{&Flags::plugin, nullptr}},
    {"TORCH_TPU_PLUGIN_OPTIONS", "", "the plugin's own options: name=value, ',' between",
     Choice{&Flags::plugin_options, nullptr}},
    {"TORCH_TPU_PLUGIN_TIMEOUT", "300", "seconds that a plugin has to come up", Integer{&Flags::plugin_timeout, 1}},
    {"TORCH_TPU_DEVICES", "0", "devices that this process uses; 0: one, under torchrun one for each local rank",
     Integer{&Flags::devices, 0, kMostDevices}},
    {"TORCH_TPU_MEMORY", "0", "memory size of a device, such as 4GiB; 0: all that there is",
     Size{&Flags::memory_bytes}},
    {"TORCH_TPU_CACHE", "",
     "program cache: a writable directory, then read-only ones, ':' between; empty: the user's; ':': none",
     Choice{&Flags::cache_dir, nullptr}},
    {"TORCH_TPU_CACHE_SIZE", "4GiB", "size that the writable program cache is kept under", Size{&Flags::cache_bytes}},
    {"TORCH_TPU_THREADS", "0",
     "threads that the embedded device computes with; 0: one for each core that the process may use (affinity, "
     "control groups); under torchrun its share",
     Integer{&Flags::threads, 0}},
    {"TORCH_TPU_INSTRUCTIONS", "all",
     "what the embedded device uses of the processor's instructions: 'all', or those of a level at most: 'x86-64-v4' "
     "(AVX-512), 'x86-64-v3' (AVX2), 'x86-64-v2'",
     Choice{&Flags::instructions, "all,x86-64-v4,x86-64-v3,x86-64-v2"}},
    {"TORCH_TPU_COMPILE_THREADS", "0",
     "threads that compile; 0: one for the embedded device, whose cores they share, else one for each core but one, 16 "
     "at most",
     Integer{&Flags::compile_threads, 0, 1024}},
    {"TORCH_TPU_TUNE_BUDGET", "0.05",
     "share of the time that launches take which making programs faster (candidates, clusters) may cost; 0: none is "
     "made",
     Share{&Flags::tune_budget}},
    {"TORCH_TPU_TUNE_AFTER", "100", "milliseconds that the launches of a fragment took before it is worth measuring",
     Integer{&Flags::tune_after, 0}},
    {"TORCH_TPU_CLUSTERS", "never",
     "fragments that follow one another, compiled as one: 'never', 'measured' where that is faster, 'always' (tests)",
     Choice{&Flags::clusters, "measured,always,never"}},
    {"TORCH_TPU_COMPILE_AFTER", "2", "launches of a fragment before it is compiled", Integer{&Flags::compile_after, 0}},
    {"TORCH_TPU_FALLBACK", "host", "an operator without a lowering: 'host' runs PyTorch's CPU kernel, 'error' raises",
     Choice{&Flags::fallback, "host,error"}},
    {"TORCH_TPU_MODE", "fused", "execution mode at start: fused, strict or debug",
     Choice{&Flags::mode, "fused,strict,debug"}},
    {"TORCH_TPU_DUMP", "", "directory to which every compile stage is written; empty: none",
     Choice{&Flags::dump, nullptr}},
    {"TORCH_TPU_WINDOW", "512", "the most operations a fragment holds", Integer{&Flags::window_ops, 1}},
    {"TORCH_TPU_KNOWN_OPS", "131072",
     "operations that the known fragments hold together (some 200 MB with their code, up to 500 MB where all are of "
     "different sizes); beyond, old fragments are given up",
     Integer{&Flags::known_ops, 1}},
};

// "4GiB", "512m", "1.5G", "1000000": bytes. Suffixes are powers of 1024 whether or not the i is written.
std::optional<int64_t> ParseSize(const std::string& text) {
  std::string lower = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text));
  size_t digits = lower.find_first_not_of("0123456789.");
  absl::string_view number = absl::string_view(lower).substr(0, digits);
  absl::string_view unit = digits == std::string::npos ? "" : absl::string_view(lower).substr(digits);
  unit = absl::StripLeadingAsciiWhitespace(unit);
  double scale = 1;
  if (!unit.empty() && unit != "b") {
    constexpr absl::string_view kPrefixes = "kmgt";
    size_t power = kPrefixes.find(unit[0]);
    if (power == absl::string_view::npos) return std::nullopt;
    absl::string_view rest = unit.substr(1);
    if (!rest.empty() && rest != "b" && rest != "ib") return std::nullopt;
    for (size_t i = 0; i <= power; ++i) scale *= 1024;
  }
  double value = 0;
  if (!absl::SimpleAtod(number, &value)) return std::nullopt;
  value *= scale;
  if (!(value >= 0 && value < 9e18)) return std::nullopt;
  return static_cast<int64_t>(value);
}

bool Assign(const Declaration& d, const std::string& text, Flags& flags) {
  if (const auto* size = std::get_if<Size>(&d.kind)) {
    std::optional<int64_t> bytes = ParseSize(text);
    if (bytes) flags.*size->member = *bytes;
    return bytes.has_value();
  }
  if (const auto* integer = std::get_if<Integer>(&d.kind)) {
    int value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < integer->least || value > integer->most) return false;
    flags.*integer->member = value;
    return true;
  }
  if (const auto* share = std::get_if<Share>(&d.kind)) {
    double value = 0;
    if (!absl::SimpleAtod(text, &value) || !(value >= 0)) return false;
    flags.*share->member = value;
    return true;
  }
  const Choice& choice = std::get<Choice>(d.kind);
  if (choice.choices != nullptr) {
    bool known = false;
    for (absl::string_view c : absl::StrSplit(choice.choices, ',')) known |= c == text;
    if (!known) return false;
  }
  flags.*choice.member = text;
  return true;
}

std::string Spell(const Declaration& d, const Flags& flags) {
  if (const auto* size = std::get_if<Size>(&d.kind)) return absl::StrCat(flags.*size->member);
  if (const auto* integer = std::get_if<Integer>(&d.kind)) return absl::StrCat(flags.*integer->member);
  if (const auto* share = std::get_if<Share>(&d.kind)) return absl::StrCat(flags.*share->member);
  return flags.*std::get<Choice>(d.kind).member;
}

std::string Expected(const Declaration& d) {
  if (std::holds_alternative<Size>(d.kind)) return "a size such as 512MiB or 4GiB";
  if (const auto* integer = std::get_if<Integer>(&d.kind)) {
    const bool bounded = integer->most < std::numeric_limits<int>::max();
    return absl::StrCat("a whole number, at least ", integer->least,
                        bounded ? absl::StrCat(" and at most ", integer->most) : "");
  }
  if (std::holds_alternative<Share>(d.kind)) return "a number, at least 0";
  return absl::StrCat("one of ", std::get<Choice>(d.kind).choices);
}

// XLA takes a file's name for what the file holds; libtpu has a variable of its own.
std::string XlaFlags() {
  std::string flags;
  for (const char* name : {"XLA_FLAGS", "LIBTPU_INIT_ARGS"}) {
    const char* const text = std::getenv(name);
    if (text == nullptr) continue;
    if (*text != '\0' && *text != '-') {
      std::ifstream file(text);
      flags.append(std::istreambuf_iterator<char>(file), {});
    } else {
      flags += text;
    }
    flags += ' ';
  }
  return flags;
}

// Empty where the user has no directory, or one that can't stand in a list.
std::string UsersCache() {
  for (const auto& [name, below] : {std::pair("XDG_CACHE_HOME", ""), std::pair("HOME", "/.cache")}) {
    const char* const directory = std::getenv(name);
    if (directory == nullptr || *directory != '/') continue;
    const std::string cache = absl::StrCat(directory, below, "/torch_tpu");
    return absl::StrContains(cache, ':') ? "" : cache;
  }
  return "";
}

}  // namespace

Flags Flags::FromEnvironment() {
  Flags flags;
  // Set by torchrun: how many ranks share this host.
  const char* const ranks = std::getenv("LOCAL_WORLD_SIZE");
  if (ranks == nullptr || !absl::SimpleAtoi(ranks, &flags.local_ranks)) flags.local_ranks = 1;
  flags.xla_flags = XlaFlags();
  for (const Declaration& d : kDeclarations) {
    Assign(d, d.default_value, flags);
    const char* text = std::getenv(d.name);
    if (text == nullptr || *text == '\0' || Assign(d, text, flags)) continue;
    std::fprintf(stderr, "torch_tpu: %s=%s is not %s; using %s\n", d.name, text, Expected(d).c_str(),
                 *d.default_value ? d.default_value : "none");
  }
  if (flags.cache_dir.empty()) flags.cache_dir = UsersCache();
  if (flags.devices == 0) flags.devices = std::clamp(flags.local_ranks, 1, kMostDevices);
  return flags;
}

const Flags& Flags::Get() {
  static const Flags flags = FromEnvironment();
  return flags;
}

std::vector<FlagInfo> Flags::All() {
  std::vector<FlagInfo> all;
  for (const Declaration& d : kDeclarations) all.push_back({d.name, d.default_value, d.meaning, Spell(d, Get())});
  return all;
}

}  // namespace tpu

// What the launches of one fragment have shown, in this process and those before it: plain data, kept beside the
// fragment's programs (tuning.h says when).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace tpu {

// A candidate that was measured against the best program so far: medians of a launch.
struct Decision {
  std::string candidate;          // Tuning::ToString
  int64_t before = 0, after = 0;  // nanoseconds
  bool adopted = false;
  friend bool operator==(const Decision&, const Decision&) = default;
};

struct Profile {
  std::array<int64_t, 2> runs{}, nanoseconds{};  // by tier
  int64_t compile_nanoseconds = 0;               // of the compiler's thread, the last time
  std::string tuning;                            // of the best program: Tuning::ToString
  std::vector<Decision> decisions;               // in order
  bool finished = false;                         // no candidate is left
  std::vector<KernelTime> kernels;               // of the best program, by the last process that knows
  friend bool operator==(const Profile&, const Profile&) = default;

  // Old counts weigh less: halves them.
  void Age();
  // Adds what another process knows: its counts, its decisions on candidates that this one has not measured, and its
  // best program where this one has decided nothing; the times of kernels where this one has none.
  void Merge(const Profile& other);

  std::string Encode() const;
  // nullopt for anything but a whole encoding.
  static std::optional<Profile> Decode(const std::string& bytes);
};

}  // namespace tpu

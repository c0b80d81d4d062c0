// Knobs of a backend: how a fragment's program does its work. Elementwise results are the same bits under all of them;
// products by another library, and reductions in kernels that were joined otherwise, may sum in another order.
//
// Offered by CompilerBackend::Candidates, chosen by jit, which knows no knob by name: it compares, prints and keeps
// them. Plain data.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tpu {

// Asking memory ahead gains on Intel's processors and loses on AMD's (bench/findings.md).
int UsualPrefetch();

struct Tuning {
  // The host compiler's; the defaults are what it does unless told otherwise.
  int products = 0;      // bit i: the i-th kind of f32 products (candidates.h) is not multiplied by whom it would be
  int convolutions = 1;  // 1: those that the device has a step for are not the library's
  int streams = 10;      // large tensors that a loop walks along at once, where kernels are joined for reading alike
  int step_ns = 3000;    // what a kernel of its own is taken to cost, where joining two costs computing something twice
  int prefetch = UsualPrefetch();  // bytes ahead of a kernel's loads that it asks memory for; 0: none
  int registers = 4;               // vector registers that a value of a kernel fills, where nothing in it is heavy
  int task_us = 30;                // of a kernel's work, as estimated, that a thread takes at a time
  int tile = 16;  // positions of a loop that go together where the innermost strides over what lies along it;
                  // 0: the loops' order stays

  friend bool operator==(const Tuning&, const Tuning&) = default;
  // What differs from the default, such as "products=1 prefetch=0"; "" for the default.
  std::string ToString() const;
  // nullopt for what ToString doesn't write.
  static std::optional<Tuning> Parse(std::string_view text);
};

// A tuning that may be faster than another, and the share of a launch's time that it is expected to save if it is.
struct Candidate {
  Tuning tuning;
  double saves;
};

}  // namespace tpu

// Plans that differ in one size or two only, as one plan whose numbers follow these.
//
// The compiler makes the plan of one fragment at several sizes; where these plans are alike but for numbers, each of
// which is a polynomial of the sizes, the plan for any between them is known without a compiler. It holds because
// what a compiler decides by comparing sizes it decides alike at both ends of each, hence in between, and what it
// decides by divisibility alike at sizes whose differences have no common divisor, hence everywhere (jit/family.cc
// chooses the sizes).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/host/plan.h"
#include "runtime/polynomial.h"

namespace tpu::host {

struct PlanFamily {
  struct Number {
    uint32_t place = 0;  // in Plan::Parts::numbers
    Polynomial value;
  };

  Plan plan;                    // at some size
  SizeRange range;              // that it serves
  std::vector<Number> numbers;  // the ones that follow the sizes, in their order

  // FailedPrecondition, naming the first difference, where the plans are not one family. They are at these sizes: at
  // least four of the one, each with each of the other (a cube goes through three values as a square does).
  static absl::StatusOr<PlanFamily> Join(std::vector<Plan> plans, absl::Span<const SizePoint> points);
  // OutOfRange beyond the range.
  absl::StatusOr<Plan> At(absl::Span<const int64_t> sizes) const;

  std::string Serialize() const;
  static absl::StatusOr<PlanFamily> Parse(std::string_view bytes);
};

}  // namespace tpu::host

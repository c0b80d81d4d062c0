#include "runtime/host/plan_family.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/bytes.h"
#include "runtime/host/arena.h"
#include "runtime/host/plan_check.h"
#include "runtime/host/tile_cut.h"

namespace tpu::host {
namespace {

constexpr std::string_view kMagic = "TPUFAMI3";

// Offsets of temporaries follow no polynomial: they are found anew for each size.
void ForgetArena(Plan& plan) {
  plan.arena_bytes = plan.thread_bytes = 0;
  for (Slot& slot : plan.slots) {
    if (slot.kind == Slot::Kind::kTemp || slot.kind == Slot::Kind::kTile) slot.offset = 0;
  }
}

std::string FirstDifference(const Plan& a, const Plan& b) {
  for (size_t i = 0; i < std::min(a.steps.size(), b.steps.size()); ++i) {
    const Step &x = a.steps[i], &y = b.steps[i];
    if (x.kind != y.kind || x.label != y.label || x.slots.size() != y.slots.size() ||
        x.kernel.parameters.size() != y.kernel.parameters.size() || x.gemm.batch.size() != y.gemm.batch.size()) {
      return absl::StrCat("step ", i, ", ", x.label, " and ", y.label);
    }
  }
  return absl::StrCat(a.steps.size(), " and ", b.steps.size(), " steps, ", a.kernels.size(), " and ", b.kernels.size(),
                      " kernels");
}

}  // namespace

absl::StatusOr<PlanFamily> PlanFamily::Join(std::vector<Plan> plans, absl::Span<const SizePoint> points) {
  std::vector<Plan::Parts> parts;
  for (Plan& plan : plans) {
    ForgetArena(plan);
    parts.push_back(plan.Split());
  }
  PlanFamily family;
  for (const SizePoint& point : points) family.range.Reach(point);
  for (size_t i = 1; i < plans.size(); ++i) {
    if (parts[i].frame != parts[0].frame) {
      return absl::FailedPreconditionError(absl::StrCat("plans at sizes ", absl::StrJoin(points[0], " by "), " and ",
                                                        absl::StrJoin(points[i], " by "),
                                                        " differ: ", FirstDifference(plans[0], plans[i])));
    }
  }
  absl::flat_hash_map<std::vector<int64_t>, Polynomial> known;
  for (uint32_t place = 0; place < parts[0].numbers.size(); ++place) {
    std::vector<int64_t> values;
    values.reserve(plans.size());
    for (const Plan::Parts& of_plan : parts) values.push_back(of_plan.numbers[place]);
    if (std::equal(values.begin() + 1, values.end(), values.begin())) continue;
    auto it = known.find(values);
    if (it == known.end()) {
      const std::optional<Polynomial> value = Polynomial::Through(points, values);
      if (!value) {
        return absl::FailedPreconditionError(
            absl::StrCat("a number of the plan follows no polynomial: ", values[0], ", ", values[1], ", .."));
      }
      it = known.emplace(std::move(values), *value).first;
    }
    family.numbers.push_back({place, it->second});
  }
  family.plan = std::move(plans[0]);
  PlaceTemporaries(family.plan);
  return family;
}

absl::StatusOr<Plan> PlanFamily::At(absl::Span<const int64_t> sizes) const {
  if (!range.Holds(sizes)) {
    return absl::OutOfRangeError(absl::StrCat("a program for sizes ", absl::StrJoin(range.least, " by "), " to ",
                                              absl::StrJoin(range.most, " by "), " at ", absl::StrJoin(sizes, " by ")));
  }
  Plan at = plan;
  std::vector<std::pair<uint32_t, int64_t>> values;
  values.reserve(numbers.size());
  for (const Number& number : numbers) values.push_back({number.place, number.value.At(sizes)});
  if (absl::Status status = at.SetNumbers(values); !status.ok()) return status;
  for (const TileLoop& loop : at.tile_loops) {  // have a part of the temporaries each
    if (absl::Status status = CheckTiles(loop); !status.ok()) return status;
  }
  PlaceTemporaries(at);
  if (absl::Status status = CheckPlan(at); !status.ok()) return status;
  return at;
}

std::string PlanFamily::Serialize() const {
  ByteWriter out;
  out.I64s(range.least);
  out.I64s(range.most);
  out.U64(numbers.size());
  for (const Number& number : numbers) {
    out.U64(number.place);
    number.value.Write(out);
  }
  out.String(plan.Serialize());
  return std::string(kMagic) + std::move(out).Take();
}

absl::StatusOr<PlanFamily> PlanFamily::Parse(std::string_view bytes) {
  const auto bad = [] { return absl::InvalidArgumentError("host plan family: damaged, or of another version"); };
  if (bytes.substr(0, kMagic.size()) != kMagic) return bad();
  ByteReader in(bytes.substr(kMagic.size()));
  PlanFamily family;
  SizeRange& range = family.range;
  range.least = in.I64s();
  range.most = in.I64s();
  if (range.least.empty() || range.most.size() != range.least.size()) return bad();
  for (uint64_t count = in.Count((1 + Polynomial().terms.size()) * sizeof(int64_t)); count > 0; --count) {
    Number number;
    number.place = static_cast<uint32_t>(in.U64());
    if (!number.value.Read(in, range.least.size())) return bad();
    family.numbers.push_back(number);
  }
  const std::string plan = in.String();
  if (!in.ok() || !in.AtEnd()) return bad();
  absl::StatusOr<Plan> parsed = Plan::Parse(plan);
  if (!parsed.ok()) return parsed.status();
  family.plan = *std::move(parsed);
  return family;
}

}  // namespace tpu::host

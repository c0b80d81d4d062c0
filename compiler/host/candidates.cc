#include "compiler/host/candidates.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/host/gemm.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/plan.h"

namespace tpu::host {
namespace {

constexpr double kLeastShare = 0.05;  // of a kind in the multiply-adds of all products
constexpr size_t kMostKinds = 4;
constexpr int64_t kLeastRows = 16;  // fewer rows or columns are not multiplied by panels

struct Kind {
  std::vector<size_t> steps;
  double work = 0;
};

bool ByPanels(const GemmStep& g) { return g.triangle == Triangle::kNone ? PanelsFirst() : PanelsServe(g); }

std::vector<Kind> KindsOf(const Plan& plan) {
  std::map<std::vector<int64_t>, Kind> kinds;
  double all = 0;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const GemmStep& g = plan.steps[i].gemm;
    if (plan.steps[i].kind != Step::Kind::kGemm || g.dtype != DType::kFloat32 || std::min(g.m, g.n) < kLeastRows)
      continue;
    const double work = static_cast<double>(RowsOf(g)) * static_cast<double>(g.n) * static_cast<double>(g.k);
    Kind& kind = kinds[{g.m, g.n, g.k, g.trans_a, g.trans_b, static_cast<int64_t>(g.triangle), RowsOf(g)}];
    kind.steps.push_back(i);
    kind.work += work;
    all += work;
  }
  std::vector<Kind> ordered;
  for (auto& [key, kind] : kinds) {
    if (kind.work >= kLeastShare * all) ordered.push_back(std::move(kind));
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const Kind& a, const Kind& b) { return a.work > b.work; });
  if (ordered.size() > kMostKinds) ordered.resize(kMostKinds);
  return ordered;
}

}  // namespace

void TurnProducts(Plan& plan, int kinds) {
  const std::vector<Kind> all = KindsOf(plan);
  for (size_t i = 0; i < all.size(); ++i) {
    if ((kinds >> i & 1) == 0) continue;
    for (size_t step : all[i].steps) {
      GemmStep& g = plan.steps[step].gemm;
      g.method = ByPanels(g) ? Method::kLibrary : Method::kPanels;
    }
  }
}

std::vector<Tuning> Candidates(const Program& program, const Tuning& tuning) {
  const absl::StatusOr<Plan> plan = Plan::Parse(program.bytes);
  if (!plan.ok()) return {};
  const auto is_kernel = [](const Step& step) { return step.kind == Step::Kind::kKernel; };
  const auto kernels = std::count_if(plan->steps.begin(), plan->steps.end(), is_kernel);

  std::vector<Tuning> candidates;
  const auto turn = [&](int Tuning::* knob, int value) {
    if (tuning.*knob == value) return;
    Tuning candidate = tuning;
    candidate.*knob = value;
    candidates.push_back(candidate);
  };
  const std::vector<Kind> kinds = KindsOf(*plan);
  for (size_t i = 0; i < kinds.size(); ++i) turn(&Tuning::products, tuning.products | 1 << i);
  if (kernels > 1) turn(&Tuning::streams, 20);
  if (kernels > 1) turn(&Tuning::step_ns, 12000);
  if (kernels > 0) {
    turn(&Tuning::step_ns, 500);
    turn(&Tuning::prefetch, 0);
    turn(&Tuning::prefetch, 1024);
    turn(&Tuning::registers, 8);
  }
  return candidates;
}

}  // namespace tpu::host

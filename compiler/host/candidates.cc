#include "compiler/host/candidates.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "compiler/aten/registry.h"
#include "runtime/host/gemm.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/plan.h"

namespace tpu::host {
namespace {

constexpr double kLeastShare = 0.05;  // of a kind in the multiply-adds of all products
constexpr size_t kMostKinds = 4;
constexpr int64_t kLeastRows = 16;  // fewer rows or columns are not multiplied by panels

constexpr double kMultipliedInNs = 50;  // multiply-adds of f32 by a core

constexpr double kLeastSaved = 0.003;  // of all: where even ten times that would hardly be worth an exchange

// What turning a knob saves where it saves anything, of the time of what it is about; and of how many kernels it is.
constexpr double kProductsMaySave = 0.1;
constexpr double kConvolutionsMaySave = 0.1;
constexpr double kLibraryMaySave = 0.03;  // of convolutions, where it is not what they are usually left to
struct KernelKnob {
  int Tuning::* knob;
  int value;
  double saves;
  int64_t least_kernels;
};
constexpr KernelKnob kKernelKnobs[] = {
    {&Tuning::streams, 20, 0.06, 2},    {&Tuning::step_ns, 12000, 0.06, 2}, {&Tuning::prefetch, 0, 0.05, 1},
    {&Tuning::prefetch, 2048, 0.04, 1}, {&Tuning::registers, 8, 0.04, 1},   {&Tuning::step_ns, 500, 0.04, 1},
    {&Tuning::prefetch, 1024, 0.03, 1}, {&Tuning::task_us, 100, 0.03, 1},   {&Tuning::tile, 0, 0.02, 1},
    {&Tuning::task_us, 10, 0.02, 1},
};

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

// The nanoseconds of each step, on one core where nothing was measured. Stages of one label were measured together:
// they share by their estimates.
std::vector<double> CostsOf(const Plan& plan, const Tuning& tuning, absl::Span<const KernelTime> measured) {
  std::vector<double> costs;
  for (const Step& step : plan.steps) {
    const GemmStep& g = step.gemm;
    double cost = 0;
    if (step.kind == Step::Kind::kGemm) {
      cost = static_cast<double>(RowsOf(g)) * static_cast<double>(g.n) * static_cast<double>(g.k) / kMultipliedInNs;
    } else if (step.kind == Step::Kind::kConv) {
      const ConvStep& c = step.conv;
      cost = static_cast<double>(c.batch * c.out * c.rows.out * c.cols.out) *
             static_cast<double>(c.in / c.groups * c.rows.kernel * c.cols.kernel) / kMultipliedInNs;
    } else if (step.kind == Step::Kind::kKernel) {
      cost =
          1000.0 * tuning.task_us * static_cast<double>(step.kernel.extent()) / static_cast<double>(step.kernel.grain);
    }
    costs.push_back(std::max(cost, 1.0));
  }
  std::map<std::string, std::vector<size_t>> labels;
  for (const Plan::Stage& stage : plan.Stages()) {
    std::vector<size_t>& steps = labels[plan.LabelOf(stage)];
    for (size_t i = stage.first; i < stage.first + stage.count; ++i) steps.push_back(i);
  }
  for (const KernelTime& time : measured) {
    const auto known = labels.find(time.label);
    if (known == labels.end() || time.runs == 0) continue;
    double estimate = 0;
    for (size_t step : known->second) estimate += costs[step];
    const double factor = static_cast<double>(time.nanoseconds) / static_cast<double>(time.runs) / estimate;
    for (size_t step : known->second) costs[step] *= factor;
  }
  return costs;
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

std::vector<Candidate> Candidates(const Program& program, const Tuning& tuning, absl::Span<const KernelTime> measured) {
  const absl::StatusOr<Plan> plan = Plan::Parse(program.bytes);
  if (!plan.ok()) return {};
  const std::vector<double> costs = CostsOf(*plan, tuning, measured);
  const double all = std::accumulate(costs.begin(), costs.end(), 0.0);
  double kernel_cost = 0, call_cost = 0, convolution_cost = 0;
  int64_t kernels = 0;
  for (size_t i = 0; i < plan->steps.size(); ++i) {
    if (plan->steps[i].kind == Step::Kind::kCall && aten::IsTunable(plan->steps[i].label)) call_cost += costs[i];
    if (plan->steps[i].kind == Step::Kind::kConv) convolution_cost += costs[i];
    if (plan->steps[i].kind != Step::Kind::kKernel) continue;
    kernel_cost += costs[i];
    ++kernels;
  }

  std::vector<Candidate> candidates;
  const auto turn = [&](int Tuning::* knob, int value, double saved) {
    if (tuning.*knob == value || saved < kLeastSaved * all) return;
    candidates.push_back({tuning, saved / all});
    candidates.back().tuning.*knob = value;
  };
  const std::vector<Kind> kinds = KindsOf(*plan);
  for (size_t i = 0; i < kinds.size(); ++i) {
    double cost = 0;
    for (size_t step : kinds[i].steps) cost += costs[step];
    turn(&Tuning::products, tuning.products | 1 << i, kProductsMaySave * cost);
  }
  if (call_cost > 0) turn(&Tuning::convolutions, 1, kConvolutionsMaySave * call_cost);
  if (convolution_cost > 0) turn(&Tuning::convolutions, 0, kLibraryMaySave * convolution_cost);
  for (const auto& [knob, value, saves, least] : kKernelKnobs) {
    if (kernels >= least) turn(knob, value, saves * kernel_cost);
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.saves > b.saves; });
  return candidates;
}

}  // namespace tpu::host

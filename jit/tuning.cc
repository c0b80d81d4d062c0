#include "jit/tuning.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

#include "absl/algorithm/container.h"
#include "jit/compile_pool.h"
#include "jit/engine.h"
#include "jit/fragment_table.h"
#include "jit/launch_times.h"
#include "runtime/flags.h"
#include "runtime/thread_time.h"

namespace tpu {
namespace {

using Phase = FragmentTuning::Phase;

// A fragment is worth candidates when it was launched so often, and for TORCH_TPU_TUNE_AFTER (in earlier processes
// too); not when it takes so many launches for that: microseconds drown in noise.
constexpr int64_t kLeastRuns = 16;
constexpr int64_t kMostRuns = 2000;
// Launches that are compared on each side: some 20 ms of them, within these bounds; as many times that before a
// candidate is adopted, and before one is dropped that may be faster.
constexpr int64_t kCompared = 20'000'000;
constexpr int64_t kLeastCompared = 8, kMostCompared = 40;
constexpr int64_t kToAdopt = 2, kToDropWhatMayBeFaster = 4;
// A candidate that was always so much slower is dropped after so few launches.
constexpr double kHopeless = 1.2;
constexpr size_t kEarly = 3;
constexpr size_t kMostTried = 8;
// Fragments that wait for candidates: a program of ever new ones must not pile them up.
constexpr size_t kMostWaiting = 256;
// So many candidates that were not faster halve the budget, as many more leave a third, until one is adopted.
constexpr int kFruitless = 16;
constexpr double kMayBeSaved = 0.1;               // of a launch's time, before the backend has said
constexpr int64_t kCompileOperation = 1'000'000;  // where nothing is known of the fragment
constexpr std::chrono::milliseconds kExit{300};

// The first is not counted.
LaunchTimes TimesOf(const std::vector<int64_t>& launches) {
  return LaunchTimes(absl::MakeConstSpan(launches).subspan(1));
}

Tuning BestOf(const FragmentTuning& tuning) { return Tuning::Parse(tuning.profile.tuning).value_or(Tuning()); }

uint64_t HashOf(const Program& program) { return XXH3_64bits(program.bytes.data(), program.bytes.size()); }

}  // namespace

Tuner::Tuner(Engine& engine)
    : engine_(engine),
      budget_(Flags::Get().tune_budget),
      after_(static_cast<int64_t>(Flags::Get().tune_after) * 1'000'000) {}

Tuner::Turn Tuner::Begin(FragmentEntry& entry, int device) {
  FragmentTuning& t = entry.tuning;
  if (t.phase.load(std::memory_order_acquire) != Phase::kMeasuring) return {};
  std::lock_guard<std::mutex> lock(t.mutex);
  if (!t.trial) return {};
  // Thue and Morse's sequence: fair to both whatever period a program's launches have.
  const bool candidate = std::popcount(t.trial->turns++) % 2 == 1;
  return {t.trial, candidate ? t.trial->executables[device].get() : nullptr};
}

void Tuner::End(FragmentEntry& entry, const Turn& turn, bool measurable, int64_t nanoseconds) {
  const int64_t launched = launched_.fetch_add(nanoseconds, std::memory_order_relaxed) + nanoseconds;
  if (!measurable || budget_ == 0) return;
  if (launched >= next_.load(std::memory_order_relaxed) && next_.exchange(kNever) != kNever) engine_.pool().Tune();
  FragmentTuning& t = entry.tuning;
  if (!turn.trial) {
    const TierProfile& profile = entry.profile[1];
    const int64_t runs = profile.runs.load(std::memory_order_relaxed);
    if (runs < kLeastRuns || t.phase.load(std::memory_order_relaxed) != Phase::kWatching) return;
    const int64_t total = profile.nanoseconds.load(std::memory_order_relaxed);
    if (total < t.not_before.load(std::memory_order_relaxed)) return;
    if (total + t.profile.nanoseconds[1] < after_ || total / runs < after_ / kMostRuns) return;
    Phase watching = Phase::kWatching;
    if (t.phase.compare_exchange_strong(watching, Phase::kWaiting)) Wait(entry);
    return;
  }
  std::lock_guard<std::mutex> lock(t.mutex);
  if (t.trial != turn.trial) return;
  TuningTrial& trial = *t.trial;
  (turn.executable != nullptr ? trial.candidate : trial.best).push_back(nanoseconds);
  if (std::min(trial.best.size(), trial.candidate.size()) < kEarly) return;
  const LaunchTimes best = TimesOf(trial.best), candidate = TimesOf(trial.candidate);
  const int64_t needed = std::clamp(kCompared / std::max<int64_t>(best.median(), 1), kLeastCompared, kMostCompared);
  const auto compared = static_cast<int64_t>(std::min(trial.best.size(), trial.candidate.size())) - 1;
  const bool hopeless = static_cast<double>(candidate.least()) >= kHopeless * static_cast<double>(best.median());
  const bool ahead = candidate.FasterThan(best);
  const int64_t times = ahead ? kToAdopt : candidate.PerhapsFasterThan(best) ? kToDropWhatMayBeFaster : 1;
  if (!hopeless && compared < times * needed) return;
  Metrics::Get().candidates_measured.fetch_add(1, std::memory_order_relaxed);
  const int64_t lost =
      std::max<int64_t>(candidate.median() - best.median(), 0) * static_cast<int64_t>(trial.candidate.size());
  spent_.fetch_add(lost, std::memory_order_relaxed);
  Metrics::Get().tune_us.fetch_add(lost / 1000, std::memory_order_relaxed);
  const bool adopt = ahead && !engine_.fixed();
  if (ahead) {
    fruitless_.store(0, std::memory_order_relaxed);
  } else {
    fruitless_.fetch_add(1, std::memory_order_relaxed);
  }
  t.profile.decisions.push_back({trial.tuning.ToString(), best.median(), candidate.median(), adopt});
  Decide(entry, adopt);
}

void Tuner::Reject(FragmentEntry& entry, const Turn& turn) {
  std::lock_guard<std::mutex> lock(entry.tuning.mutex);
  if (entry.tuning.trial == turn.trial) Decide(entry, false);
}

void Tuner::Decide(FragmentEntry& entry, bool adopt) {
  FragmentTuning& t = entry.tuning;
  if (adopt) {
    Metrics::Get().candidates_adopted.fetch_add(1, std::memory_order_relaxed);
    for (size_t d = 0; d < entry.executables.size(); ++d) {
      entry.Install(static_cast<int>(d), std::move(t.trial->executables[d]));
    }
    t.profile.tuning = t.trial->tuning.ToString();
    t.adopted = std::make_unique<Program>(std::move(t.trial->program));
    t.listed = false;
  }
  t.unkept = t.decided = true;
  t.trial = nullptr;
  t.phase.store(Phase::kWaiting, std::memory_order_release);
  Wait(entry);
}

void Tuner::Wait(FragmentEntry& entry) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.emplace_back(&entry);
  }
  engine_.pool().Tune();
}

int64_t Tuner::CostOf(const FragmentEntry& entry) {
  const int64_t known = entry.tuning.compile_nanoseconds.load(std::memory_order_relaxed);
  return known > 0 ? known : entry.live_ops * kCompileOperation;
}

int64_t Tuner::BudgetedAt(int64_t cost) const {
  const double budget = budget_ / (1 + fruitless_.load(std::memory_order_relaxed) / kFruitless);
  const double all = static_cast<double>(spent_.load(std::memory_order_relaxed) + cost) / budget;
  return all < static_cast<double>(kNever) ? static_cast<int64_t>(all) : kNever;
}

bool Tuner::Affords(const FragmentEntry& entry) const {
  return launched_.load(std::memory_order_relaxed) >= BudgetedAt(CostOf(entry));
}

double Tuner::WorthOf(const FragmentEntry& entry) {
  const FragmentTuning& t = entry.tuning;
  const double saves = !t.listed ? kMayBeSaved : t.left.empty() ? 0 : t.left.front().saves;
  return saves * static_cast<double>(entry.profile[1].nanoseconds) / static_cast<double>(CostOf(entry));
}

Tuning Tuner::Recall(FragmentEntry& entry, const std::string& key) {
  FragmentTuning& t = entry.tuning;
  std::lock_guard<std::mutex> lock(t.mutex);
  if (t.key.empty()) {
    t.key = key;
    if (std::optional<Profile> profile = engine_.pool().LoadProfile(key)) {
      t.profile = *std::move(profile);
      t.compile_nanoseconds = t.profile.compile_nanoseconds;
      for (const Decision& d : t.profile.decisions) t.tried.insert(d.candidate);
      if (t.profile.finished) t.phase = Phase::kFinished;
    }
  }
  return BestOf(t);
}

void Tuner::Advance() {
  std::vector<FragmentRef> waiting;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting.swap(waiting_);
  }
  std::erase_if(waiting, [this](const FragmentRef& entry) {
    const bool finished = entry->tuning.listed && entry->tuning.left.empty();
    finished ? Finish(*entry) : KeepDecided(*entry);
    return finished;
  });
  SendBackLeast(waiting);
  const int64_t start = ThreadNanoseconds();
  int64_t next = launched_.load(std::memory_order_relaxed);  // where programs are fixed: once they aren't
  const FragmentRef first = engine_.fixed() ? FragmentRef() : Take(waiting, next);
  std::shared_ptr<TuningTrial> trial = first ? MakeTrial(*first) : nullptr;
  const int64_t took = ThreadNanoseconds() - start;
  spent_.fetch_add(took, std::memory_order_relaxed);
  Metrics::Get().tune_us.fetch_add(took / 1000, std::memory_order_relaxed);
  if (engine_.pool().stopping()) return;  // what was cancelled says nothing about the fragment
  if (trial) {
    std::lock_guard<std::mutex> lock(first->tuning.mutex);
    first->tuning.trial = std::move(trial);
    first->tuning.phase.store(Phase::kMeasuring, std::memory_order_release);
  } else if (first) {
    waiting.push_back(first);
  }
  if (waiting.empty()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.insert(waiting_.end(), waiting.begin(), waiting.end());
  }
  if (first) {
    engine_.pool().Tune();
  } else {
    next_ = next;  // now that they can be found
  }
}

void Tuner::SendBackLeast(std::vector<FragmentRef>& waiting) {
  if (waiting.size() <= kMostWaiting) return;
  std::vector<std::pair<double, FragmentRef>> by_worth;
  for (FragmentRef& entry : waiting) by_worth.emplace_back(WorthOf(*entry), std::move(entry));
  waiting.clear();
  std::nth_element(by_worth.begin(), by_worth.begin() + kMostWaiting, by_worth.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = 0; i < by_worth.size(); ++i) {
    if (i < kMostWaiting) {
      waiting.push_back(std::move(by_worth[i].second));
    } else {
      FragmentEntry& least = *by_worth[i].second;
      least.tuning.not_before = 2 * least.profile[1].nanoseconds;
      least.tuning.phase.store(Phase::kWatching, std::memory_order_release);
    }
  }
}

FragmentRef Tuner::Take(std::vector<FragmentRef>& waiting, int64_t& next) {
  while (!waiting.empty()) {
    const auto best = absl::c_max_element(
        waiting, [](const FragmentRef& a, const FragmentRef& b) { return WorthOf(*a) < WorthOf(*b); });
    if (!Affords(**best)) {
      next = BudgetedAt(CostOf(**best));
      return {};
    }
    FragmentTuning& t = (*best)->tuning;
    if (std::exchange(t.listed, true)) {
      FragmentRef taken = std::move(*best);
      waiting.erase(best);
      return taken;
    }
    List(**best);  // and by what that says they are compared again
    if (t.left.empty()) {
      Finish(**best);
      waiting.erase(best);
    }
  }
  return {};
}

void Tuner::Finish(FragmentEntry& entry) {
  FragmentTuning& t = entry.tuning;
  {
    std::lock_guard<std::mutex> lock(t.mutex);
    t.profile.finished = true;
    t.phase.store(Phase::kFinished, std::memory_order_release);
  }
  t.unkept = true;
  KeepDecided(entry);
}

void Tuner::KeepDecided(FragmentEntry& entry) {
  FragmentTuning& t = entry.tuning;
  if (t.adopted) engine_.pool().Store(entry.fragment, BestOf(t), *std::exchange(t.adopted, nullptr));
  if (t.unkept) Keep(entry);
}

// Fills `left` anew.
void Tuner::List(FragmentEntry& entry) {
  FragmentTuning& t = entry.tuning;
  t.left.clear();
  const Tuning best = BestOf(t);
  const absl::StatusOr<Program> program = engine_.pool().ProgramOf(entry.fragment, best);
  if (!program.ok()) return;
  t.best_bytes = HashOf(*program);
  std::vector<KernelTime> measured = entry.KernelTimes();
  if (measured.empty()) measured = t.profile.kernels;
  const size_t room = kMostTried - std::min(kMostTried, t.tried.size());
  for (Candidate& candidate : engine_.backend().Candidates(*program, best, measured)) {
    if (t.left.size() < room && !t.tried.contains(candidate.tuning.ToString())) t.left.push_back(std::move(candidate));
  }
}

// The first of what is left. Null where it is no other program than the best, or none.
std::shared_ptr<TuningTrial> Tuner::MakeTrial(FragmentEntry& entry) {
  FragmentTuning& t = entry.tuning;
  auto trial = std::make_shared<TuningTrial>();
  trial->tuning = t.left.front().tuning;
  t.left.pop_front();
  t.tried.insert(trial->tuning.ToString());
  absl::StatusOr<Program> program = engine_.pool().ProgramOf(entry.fragment, trial->tuning);
  Metrics::Get().candidates_compiled.fetch_add(1, std::memory_order_relaxed);
  if (!program.ok() || HashOf(*program) == t.best_bytes) return nullptr;
  for (int d = 0; d < engine_.device_count(); ++d) {
    absl::StatusOr<std::unique_ptr<Executable>> executable = engine_.device(d).Load(*program);
    if (!executable.ok()) return nullptr;
    trial->executables.push_back(*std::move(executable));
  }
  trial->program = *std::move(program);
  return trial;
}

void Tuner::Keep(FragmentEntry& entry) {
  FragmentTuning& t = entry.tuning;
  Profile profile;
  bool first;
  {
    std::lock_guard<std::mutex> lock(t.mutex);
    const int64_t runs = entry.profile[1].runs - t.kept_runs[1];
    const int64_t nanoseconds = entry.profile[1].nanoseconds - t.kept_nanoseconds[1];
    const bool telling = runs >= kLeastRuns && nanoseconds >= after_ / kMostRuns * kLeastRuns;
    if (t.key.empty() || !(t.unkept || telling)) return;
    first = t.kept_runs == std::array<int64_t, 2>{};
    if (t.decided) profile = t.profile;
    for (size_t tier = 0; tier < entry.profile.size(); ++tier) {
      profile.runs[tier] = entry.profile[tier].runs - std::exchange(t.kept_runs[tier], entry.profile[tier].runs);
      profile.nanoseconds[tier] =
          entry.profile[tier].nanoseconds - std::exchange(t.kept_nanoseconds[tier], entry.profile[tier].nanoseconds);
    }
    profile.compile_nanoseconds = t.compile_nanoseconds;
    profile.kernels = entry.KernelTimes();
    t.unkept = false;
  }
  if (std::optional<Profile> others = engine_.pool().LoadProfile(t.key)) {
    if (first) others->Age();
    profile.Merge(*others);
  }
  engine_.pool().StoreProfile(t.key, profile);
}

void Tuner::KeepAll() {
  const auto end = std::chrono::steady_clock::now() + kExit;
  for (const FragmentRef& entry : engine_.Fragments()) {
    if (std::chrono::steady_clock::now() > end) return;
    Keep(*entry);
  }
}

}  // namespace tpu

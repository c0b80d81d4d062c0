#include "jit/tuning.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "jit/compile_pool.h"
#include "jit/engine.h"
#include "jit/fragment_table.h"
#include "jit/window.h"
#include "runtime/host/host_device.h"
#include "tests/unit/jit/call.h"

namespace tpu {
namespace {

namespace fs = std::filesystem;

void BusyUntil(std::chrono::steady_clock::time_point end) {
  while (std::chrono::steady_clock::now() < end) {
  }
}

// Adds one to each float within the microseconds that its program's bytes say; "none": never has the memory.
class Plus final : public Executable {
 public:
  Plus(Device& device, const std::string& bytes) : device_(device), has_memory_(absl::SimpleAtoi(bytes, &took_)) {
    ++alive;
  }
  ~Plus() override { --alive; }
  absl::Status Launch(absl::Span<Argument> inputs, absl::Span<BufferRef> outputs, const NodeRunner&,
                      const Explainer&) override {
    if (!has_memory_) return absl::ResourceExhaustedError("no memory");
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(took_);
    outputs[0] = *device_.Allocate(inputs[0].buffer->bytes());
    const auto* x = static_cast<const float*>(inputs[0].buffer->data());
    for (size_t i = 0; i < outputs[0]->bytes() / sizeof(float); ++i)
      static_cast<float*>(outputs[0]->data())[i] = x[i] + 1;
    BusyUntil(end);
    return absl::OkStatus();
  }
  int calls_per_launch() const override { return 0; }
  int64_t nanoseconds() const { return took_ * int64_t{1000}; }

  static inline std::atomic<int> alive = 0;

 private:
  Device& device_;
  int took_ = 0;
  const bool has_memory_;
};

std::atomic<int> g_refused_loads = 0;  // so many of the next ones
size_t g_most_programs = 0;            // 0: as many as there are

class FakeDevice final : public Device {
 public:
  int index() const override { return 0; }
  std::string Describe() const override { return "fake"; }
  std::string Target() const override { return "fake"; }
  bool host_addressable() const override { return true; }
  absl::StatusOr<BufferRef> Allocate(size_t bytes) override { return host_->Allocate(bytes); }
  absl::StatusOr<BufferRef> MakeValue(const TensorType& type, const void* source) override {
    return host_->MakeValue(type, source);
  }
  absl::Status CopyToHost(const BufferRef& source, void* destination, size_t bytes) override {
    return host_->CopyToHost(source, destination, bytes);
  }
  absl::StatusOr<std::unique_ptr<Executable>> Load(const Program& program) override {
    if (g_refused_loads > 0 && g_refused_loads-- > 0) return absl::InternalError("no such program");
    return std::make_unique<Plus>(*this, program.bytes);
  }
  size_t most_programs() const override { return g_most_programs > 0 ? g_most_programs : Device::most_programs(); }
  MemoryStats memory_stats() const override { return {}; }
  void ResetPeakMemoryStats() override {}
  void AllowMemory(int64_t) override {}
  void EmptyCache() override {}

 private:
  std::unique_ptr<Device> host_ = host::MakeHostDevice(0, 1 << 20, nullptr);
};

// What a launch takes under each tuning; others than these are not offered.
using Microseconds = std::map<std::string, std::string>;

std::chrono::microseconds g_compile_takes{0};
std::atomic<bool> g_compiles_last = false;
std::atomic<int> g_compiles_begun = 0, g_compiled_by_main = 0;
const std::thread::id kMain = std::this_thread::get_id();

class FakeBackend final : public CompilerBackend {
 public:
  explicit FakeBackend(Microseconds took) : took_(std::move(took)) {}
  absl::StatusOr<Program> Compile(const Fragment&, const Tuning& tuning) override {
    ++g_compiles_begun;
    if (std::this_thread::get_id() == kMain) ++g_compiled_by_main;
    BusyUntil(std::chrono::steady_clock::now() + g_compile_takes);
    while (g_compiles_last) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Program{"fake", took_.at(tuning.ToString()), {}, {}};
  }
  std::vector<Candidate> Candidates(const Program&, const Tuning& tuning, absl::Span<const KernelTime>) const override {
    std::vector<Candidate> candidates;
    for (const auto& [name, took] : took_) {
      if (!name.empty() && name != tuning.ToString()) candidates.push_back({*Tuning::Parse(name), 0.1});
    }
    return candidates;
  }
  bool HoldsCalls() const override { return true; }
  bool CanLower(const Call&) const override { return true; }
  bool IsBoundary(const Call&) const override { return false; }
  bool StaticScalars(const std::string&) const override { return false; }
  std::string Fingerprint() const override { return "fake"; }

 private:
  const Microseconds took_;
};

absl::Status AddOne(Device& device, const Call&, absl::Span<const KernelInput> inputs, absl::Span<BufferRef> outputs) {
  std::vector<Argument> arguments{inputs[0].argument};
  return Plus(device, "0").Launch(absl::MakeSpan(arguments), outputs, nullptr, nullptr);
}

bool g_fixed = false;

class TuningTest : public testing::Test {
 protected:
  TuningTest() {
    fs::create_directories(directory_);
    setenv("TORCH_TPU_CACHE", directory_.c_str(), 1);
    g_fixed = false;
    g_compile_takes = {};
    g_most_programs = 0;
  }
  ~TuningTest() override {
    engine_.reset();  // before what it writes at its end is removed
    fs::remove_all(directory_);
  }

  // A process of its own, as far as the tuner can tell.
  void Start(const Microseconds& took, double budget = 100) {
    engine_.reset();
    Metrics::Get().Reset();
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(std::make_unique<FakeDevice>());
    engine_ = std::make_unique<Engine>(std::move(devices), std::make_unique<FakeBackend>(took));
    engine_->set_call_runner(&AddOne);
    engine_->set_fixed_hook([] { return g_fixed; });
    engine_->tuner().set_budget(budget);
  }
  void Launch(int times) { Launch(times, call_); }
  void Launch(int times, const CallRef& call) {
    Stream& stream = engine_->stream(0, 0);
    for (int i = 0; i < times; ++i) {
      BufferRef buffer = *engine_->device(0).Allocate(type_.bytes());
      std::memset(buffer->data(), 0, buffer->bytes());
      const ValueRef x = MakeRef<Value>(&type_, nullptr, std::move(buffer));
      const Operand operand{x.get(), 0};
      ValueRef y;
      engine_->window(stream).Record(call, {&operand, 1}, {&y, 1});
      ASSERT_TRUE(engine_->Await(y, "test").ok());
      ASSERT_EQ(static_cast<const float*>(y->buffer()->data())[0], 1);
    }
    if (waits_) engine_->WaitForCompiles();
  }
  // As far as the tuner can tell: launches that take just what they should, however busy the machine is, or what
  // `disturbed` makes of that, given the launch's number.
  void Pretend(int times, const std::function<int64_t(int64_t, int)>& disturbed = nullptr) {
    for (int i = 0; i < times; ++i) {
      Pretend(Entry(), disturbed, i);
    }
  }
  void Pretend(FragmentEntry& entry, const std::function<int64_t(int64_t, int)>& disturbed = nullptr, int i = 0) {
    const Tuner::Turn turn = engine_->tuner().Begin(entry, 0);
    const Executable* executable = turn.executable != nullptr ? turn.executable : entry.executables[0].load();
    int64_t took = static_cast<const Plus*>(executable)->nanoseconds();
    if (disturbed) took = disturbed(took, i);
    entry.profile[1].runs += 1;
    entry.profile[1].nanoseconds += took;
    engine_->tuner().End(entry, turn, true, took);
    engine_->WaitForCompiles();
  }
  // Until nothing is left to measure.
  void LaunchUntilFinished() {
    for (int i = 0; i < 200 && Entry().tuning.phase != FragmentTuning::Phase::kFinished; ++i) Launch(20);
    ASSERT_EQ(Entry().tuning.phase, FragmentTuning::Phase::kFinished);
  }
  FragmentEntry& Entry() { return *engine_->Fragments().front(); }
  std::map<std::string, int64_t> Counters() const { return Metrics::Get().Counters(); }

  const TensorType type_{DType::kFloat32, {16}};
  const CallRef call_ = MakeCall("test::add_one", 1, type_);
  // Flags are read once in a process.
  const std::string directory_ = absl::StrCat(fs::temp_directory_path().string(), "/tpu_tuning_", getpid());
  std::unique_ptr<Engine> engine_;
  bool waits_ = true;  // for compiles, after launches
};

const Microseconds kTook = {{"", "600"}, {"products=1", "600"}, {"products=2", "300"}, {"streams=0", "900"}};

TEST_F(TuningTest, AFasterCandidateIsAdoptedAndASlowerOneDropped) {
  Start(kTook);
  Launch(4);
  LaunchUntilFinished();
  const Profile& profile = Entry().tuning.profile;
  EXPECT_EQ(profile.tuning, "products=2");
  ASSERT_EQ(profile.decisions.size(), 2);  // products=1 is the same program
  for (const Decision& d : profile.decisions) {
    EXPECT_EQ(d.adopted, d.candidate == "products=2") << d.candidate;
    EXPECT_EQ(d.adopted, d.after < d.before);
  }
  EXPECT_EQ(Counters()["candidates_measured"], 2);
  EXPECT_EQ(Counters()["candidates_adopted"], 1);
  EXPECT_EQ(Counters()["compiles"], 1);
}

TEST_F(TuningTest, WhatMayBeFasterIsMeasuredUntilThatIsKnown) {
  Start({{"", "600"}, {"products=2", "500"}});
  while (Counters()["compiles"] == 0) Launch(1);
  // Some of the first launches seem as fast as the candidate's.
  Pretend(600, [](int64_t took, int launch) { return launch < 270 && launch % 5 < 2 ? 500'000 : took; });
  ASSERT_EQ(Entry().tuning.profile.decisions.size(), 1);
  EXPECT_TRUE(Entry().tuning.profile.decisions[0].adopted);
}

TEST_F(TuningTest, TheNextProcessStartsWithTheBestProgram) {
  Start(kTook);
  Launch(4);
  LaunchUntilFinished();
  Start(kTook);
  Launch(2);
  EXPECT_EQ(Entry().tuning.profile.tuning, "products=2");
  Launch(400);
  EXPECT_EQ(Counters()["compiles"] + Counters()["candidates_compiled"], 0);
  EXPECT_EQ(Counters()["disk_cache_hits"], 1);
  EXPECT_EQ(static_cast<const Plus*>(Entry().executables[0].load())->nanoseconds(), 300'000);
}

TEST_F(TuningTest, AProfileOutlivesAProcessThatFinishedNothing) {
  Start(kTook, 0);
  while (Counters()["compiles"] == 0) Launch(1);
  Pretend(36);
  const int64_t runs = Entry().profile[0].runs + Entry().profile[1].runs;
  Start(kTook, 0);
  Launch(2);
  EXPECT_EQ(Entry().tuning.profile.runs[1] + Entry().tuning.profile.runs[0], runs);
}

TEST_F(TuningTest, WithoutABudgetNothingIsMeasured) {
  Start(kTook, 0);
  Launch(400);
  EXPECT_EQ(Counters()["candidates_compiled"], 0);
}

TEST_F(TuningTest, LittleIsSpentOfASmallBudget) {
  Start({{"", "600"}, {"products=1", "700"}, {"streams=5", "700"}, {"streams=0", "700"}}, 0.01);
  while (Counters()["compiles"] == 0) Launch(1);
  Entry().tuning.compile_nanoseconds = 100'000;
  Pretend(1000);
  const double launched = static_cast<double>(Entry().profile[1].nanoseconds.load()) / 1e6;
  EXPECT_LT(static_cast<double>(Counters()["tune_ms"]), 0.05 * launched);
  EXPECT_GE(Counters()["candidates_measured"], 1);
  EXPECT_LT(Counters()["candidates_measured"], 3);
}

TEST_F(TuningTest, WhereNothingIsFoundLessAndLessIsSpent) {
  Start({{"", "600"}, {"products=1", "700"}, {"streams=5", "700"}, {"streams=0", "700"}}, 0.05);
  std::vector<CallRef> calls;
  for (int i = 0; i < 64; ++i) calls.push_back(MakeCall(absl::StrCat("test::", i), 1, type_));
  while (Counters()["compiles"] < 64) {
    for (const CallRef& call : calls) Launch(1, call);
  }
  g_compile_takes = std::chrono::microseconds(500);
  const std::vector<FragmentRef> entries = engine_->Fragments();
  for (int i = 0; i < 1000; ++i) {
    for (const FragmentRef& entry : entries) Pretend(*entry);
  }
  EXPECT_GT(Counters()["candidates_measured"], 32);
  EXPECT_LT(Counters()["candidates_measured"], 3 * 64 - 32);
}

TEST_F(TuningTest, TheBudgetIsSavedUpForWhatMaySaveTheProgramMost) {
  Start({{"", "600"}, {"products=1", "700"}, {"streams=5", "700"}, {"streams=0", "700"}}, 0.01);
  const auto entry_of = [&](const std::string& op) {
    for (const FragmentRef& entry : engine_->Fragments()) {
      if (entry->fragment.nodes[0].call->op == op) return entry;
    }
    return FragmentRef();
  };
  for (const CallRef& call : {call_, CallRef(MakeCall("test::seldom", 1, type_))}) {
    while (!entry_of(call->op) || entry_of(call->op)->state != FragmentEntry::State::kReady) Launch(1, call);
  }
  const FragmentRef often = entry_of("test::add_one"), seldom = entry_of("test::seldom");
  often->tuning.compile_nanoseconds = 2'000'000;
  seldom->tuning.compile_nanoseconds = 500'000;
  g_compile_takes = std::chrono::milliseconds(2);
  const auto& decisions = often->tuning.profile.decisions;
  for (int i = 0; i < 3000 && decisions.size() < 3; ++i) Pretend(i % 8 == 0 ? *seldom : *often);
  EXPECT_EQ(decisions.size(), 3);
  EXPECT_EQ(seldom->tuning.profile.decisions.size(), 0);
}

TEST_F(TuningTest, FragmentsThatWaitForCandidatesDoNotPileUp) {
  Start({{"", "10"}, {"products=1", "10"}}, 1e-9);
  for (int i = 0; i < 300; ++i) {
    const CallRef call = MakeCall(absl::StrCat("test::add_one_", i), 1, type_);
    FragmentRef entry;
    for (int launch = 0; launch < 100 && (!entry || entry->state != FragmentEntry::State::kReady); ++launch) {
      Launch(1, call);
      for (const FragmentRef& other : engine_->Fragments()) {
        if (other->fragment.nodes[0].call == call) entry = other;
      }
    }
    ASSERT_TRUE(entry && entry->state == FragmentEntry::State::kReady) << i;
    for (int run = 0; run < 20; ++run) Pretend(*entry, [](int64_t, int) { return 10'000'000; });
  }
  int waiting = 0;
  for (const FragmentRef& entry : engine_->Fragments()) {
    waiting += entry->tuning.phase == FragmentTuning::Phase::kWaiting ? 1 : 0;
  }
  EXPECT_EQ(waiting, 256);
}

TEST_F(TuningTest, WhoWaitsForProgramsCompilesSomeOfThem) {
  Start(kTook, 0);
  waits_ = false;
  g_compile_takes = std::chrono::milliseconds(5);
  g_compiled_by_main = 0;
  std::vector<CallRef> calls;
  for (int i = 0; i < 20; ++i) calls.push_back(MakeCall(absl::StrCat("test::", i), 1, type_));
  for (int round = 0; round < 4; ++round) {
    for (const CallRef& call : calls) Launch(1, call);
    engine_->WaitForCompiles();
  }
  EXPECT_EQ(Counters()["compiles"], 20);
  EXPECT_GT(g_compiled_by_main, 0);
}

TEST_F(TuningTest, WhileProgramsAreFixedEveryLaunchIsCompiledAndNothingChanges) {
  g_fixed = true;
  Start(kTook);
  Launch(400);
  EXPECT_EQ(Counters()["launches_tier0"], 0);
  EXPECT_EQ(Counters()["candidates_compiled"], 0);
  g_fixed = false;
  for (int i = 0; i < 100 && Counters()["candidates_compiled"] == 0; ++i) Launch(1);
  g_fixed = true;  // in the middle of measuring
  const int64_t before = Entry().profile[1].nanoseconds;
  Launch(100);
  EXPECT_GE(Entry().profile[1].nanoseconds - before, 100 * 600'000);
  EXPECT_EQ(Counters()["candidates_adopted"], 0);
}

TEST_F(TuningTest, ACandidateThatHasNoMemoryCostsNoResult) {
  Start({{"", "600"}, {"products=1", "none"}, {"streams=0", "300"}});
  Launch(4);
  LaunchUntilFinished();
  EXPECT_EQ(Entry().tuning.profile.tuning, "streams=0");
}

TEST_F(TuningTest, DamagedFilesAreNoProfile) {
  Start(kTook);
  Launch(4);
  LaunchUntilFinished();
  engine_.reset();
  for (const auto& file : fs::recursive_directory_iterator(directory_)) {
    if (file.is_regular_file()) std::ofstream(file.path(), std::ios::in).write("damage", 6);
  }
  Start(kTook);
  Launch(4);
  EXPECT_EQ(Entry().tuning.profile.tuning, "");
  LaunchUntilFinished();
  EXPECT_EQ(Entry().tuning.profile.tuning, "products=2");
}

TEST_F(TuningTest, ProgramsOfSingleOperationsEndWithTheirCalls) {
  Start({{"", "0"}});
  Device& device = engine_->device(0);
  const int before = Plus::alive;
  const std::shared_ptr<Executable> kept = *engine_->pool().SingleOperation(call_, device);
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(engine_->pool().SingleOperation(MakeCall("test::another", 1, type_), device).ok());
  }
  EXPECT_LE(Plus::alive, before + 300);
  EXPECT_EQ(*engine_->pool().SingleOperation(call_, device), kept);
}

TEST_F(TuningTest, FragmentsAreNoMoreThanTheDeviceMayHaveProgramsOf) {
  g_most_programs = 100;
  Start({{"", "0"}});
  const int before = Plus::alive;
  for (int i = 0; i < 300; ++i) {
    Launch(3, MakeCall("test::another", 1, type_));
    ASSERT_LE(engine_->Fragments().size(), 113);
    ASSERT_LE(Plus::alive, before + 113);
  }
  EXPECT_GE(engine_->Fragments().size(), 100);
}

TEST_F(TuningTest, ProgramsOfSingleOperationsAreNoMoreThanTheDeviceMayHave) {
  g_most_programs = 100;
  Start({{"", "0"}});
  Device& device = engine_->device(0);
  std::vector<CallRef> calls;
  for (int i = 0; i < 300; ++i) {
    calls.push_back(MakeCall("test::another", 1, type_));
    ASSERT_TRUE(engine_->pool().SingleOperation(calls.back(), device).ok());
    ASSERT_TRUE(engine_->pool().SingleOperation(call_, device).ok());
    EXPECT_LE(Plus::alive, 257);
  }
  EXPECT_LE(Plus::alive, 100);
  EXPECT_EQ(Counters()["compiles"] + Counters()["disk_cache_hits"], 301);  // what is asked for again and again stays
  ASSERT_TRUE(engine_->pool().SingleOperation(calls.front(), device).ok());
  EXPECT_EQ(Counters()["compiles"] + Counters()["disk_cache_hits"], 302);
}

TEST_F(TuningTest, AnOperationWhoseProgramDoesNotLoadAnyMoreIsCompiledAnew) {
  Start({{"", "0"}});
  ASSERT_TRUE(engine_->pool().SingleOperation(call_, engine_->device(0)).ok());
  Start({{"", "0"}});
  g_refused_loads = 1;
  EXPECT_TRUE(engine_->pool().SingleOperation(call_, engine_->device(0)).ok());
  EXPECT_EQ(Counters()["disk_cache_hits"], 0);
  EXPECT_EQ(Counters()["compiles"], 1);
}

TEST_F(TuningTest, OfTwoThatAskForAnOperationOneCompilesIt) {
  Start({{"", "0"}});
  g_compile_takes = std::chrono::milliseconds(20);
  std::shared_ptr<Executable> others;
  std::thread other([&] { others = *engine_->pool().SingleOperation(call_, engine_->device(0)); });
  const std::shared_ptr<Executable> own = *engine_->pool().SingleOperation(call_, engine_->device(0));
  other.join();
  EXPECT_EQ(own, others);
  EXPECT_EQ(Counters()["compiles"], 1);
  EXPECT_GE(Counters()["compile_wait_ms"], 20);
}

TEST_F(TuningTest, OperationsOfANewFragmentAreCompiledOnce) {
  Start({{"", "0"}});
  g_compile_takes = std::chrono::milliseconds(5);
  const auto call = MakeCall("test::program", 1, type_);
  call->needs_program = true;
  Launch(1, call);
  EXPECT_EQ(Counters()["launches_tier0"] + Counters()["launches_tier1"], 1);  // under load its program may be first
  EXPECT_EQ(Counters()["compiles"], 1);
}

TEST_F(TuningTest, LeavingWaitsAMomentForACompilerThatCantBeStopped) {
  Start({{"", "0"}});
  waits_ = false;
  g_compiles_begun = 0;
  g_compiles_last = true;
  while (g_compiles_begun == 0) Launch(1);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(engine_->Shutdown());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));  // half a second on an idle machine
  g_compiles_last = false;
}

TEST(Tuning, TextIsReadAsItWasWritten) {
  Tuning tuning;
  EXPECT_EQ(tuning.ToString(), "");
  tuning.products = 2;
  tuning.streams = 0;
  EXPECT_EQ(Tuning::Parse(tuning.ToString()), tuning);
  for (const char* bad : {"products", "products=", "products=x", "speed=1", "products=1,streams=0"}) {
    EXPECT_FALSE(Tuning::Parse(bad)) << bad;
  }
}

}  // namespace
}  // namespace tpu

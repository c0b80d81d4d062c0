#include "jit/cluster.h"

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "jit/engine.h"
#include "jit/window.h"
#include "runtime/host/host_device.h"
#include "tests/unit/jit/call.h"

namespace tpu {
namespace {

// Exact: small whole numbers.
float Apply(const std::string& op, float a, float b) {
  if (op == "test::dot") return std::fmod(3 * a + b, 1009.0F);
  if (op == "test::multiply") return std::fmod(a * b + 1, 1009.0F);
  return std::fmod(a + b + 1, 1009.0F);
}

absl::Status Apply(Device& device, const std::string& op, const Buffer& a, const Buffer& b, BufferRef& out) {
  absl::StatusOr<BufferRef> made = device.Allocate(sizeof(float));
  if (!made.ok()) return made.status();
  *static_cast<float*>((*made)->data()) =
      Apply(op, *static_cast<const float*>(a.data()), *static_cast<const float*>(b.data()));
  out = *std::move(made);
  return absl::OkStatus();
}

absl::Status RunCall(Device& device, const Call& call, absl::Span<const KernelInput> in, absl::Span<BufferRef> out) {
  return Apply(device, call.op, *in[0].argument.buffer, *in[1].argument.buffer, out[0]);
}

// Computes node by node, and spoils what it is given for good.
class Interpreter final : public Executable {
 public:
  Interpreter(Device& device, Fragment fragment) : device_(device), fragment_(std::move(fragment)) {}
  absl::Status Launch(absl::Span<Argument> inputs, absl::Span<BufferRef> outputs, const NodeRunner&,
                      const Explainer&) override {
    std::vector<BufferRef> results(fragment_.num_results);
    const auto buffer = [&](ValueId v) -> const Buffer& {
      return IsInput(v) ? *inputs[InputIndex(v)].buffer : *results[v];
    };
    for (const Node& node : fragment_.nodes) {
      const absl::Span<const ValueId> operands = fragment_.OperandsOf(node);
      absl::Status status =
          Apply(device_, node.call->op, buffer(operands[0]), buffer(operands[1]), results[node.results_begin]);
      if (!status.ok()) return status;
    }
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i] = results[fragment_.outputs[i]];
    for (const Argument& in : inputs) {
      if (in.donated && in.buffer->ref_count() == 1) {
        *static_cast<float*>(in.buffer->data()) = std::numeric_limits<float>::quiet_NaN();
      }
    }
    return absl::OkStatus();
  }
  int calls_per_launch() const override { return 0; }

 private:
  Device& device_;
  const Fragment fragment_;
};

// A program is the number of a fragment.
class Fragments final : public CompilerBackend {
 public:
  absl::StatusOr<Program> Compile(const Fragment& fragment, const Tuning&) override {
    std::lock_guard<std::mutex> lock(mutex_);
    fragments_.push_back(fragment);
    return Program{"test", std::to_string(fragments_.size() - 1), {}, {}};
  }
  Fragment Get(const std::string& number) {
    std::lock_guard<std::mutex> lock(mutex_);
    return fragments_[std::stoul(number)];
  }
  bool HoldsCalls() const override { return true; }
  bool CanLower(const Call&) const override { return true; }
  bool IsBoundary(const Call&) const override { return false; }
  bool StaticScalars(const std::string&) const override { return false; }
  std::string Fingerprint() const override { return "fragments"; }

 private:
  std::mutex mutex_;
  std::vector<Fragment> fragments_;
};

class InterpretingDevice final : public Device {
 public:
  explicit InterpretingDevice(Fragments& fragments) : fragments_(fragments) {}
  int index() const override { return 0; }
  std::string Describe() const override { return memory_->Describe(); }
  std::string Target() const override { return "test"; }
  bool host_addressable() const override { return true; }
  absl::StatusOr<BufferRef> Allocate(size_t bytes) override { return memory_->Allocate(bytes); }
  absl::StatusOr<BufferRef> MakeValue(const TensorType& type, const void* source) override {
    return memory_->MakeValue(type, source);
  }
  absl::Status CopyToHost(const BufferRef& source, void* destination, size_t bytes) override {
    return memory_->CopyToHost(source, destination, bytes);
  }
  absl::StatusOr<std::unique_ptr<Executable>> Load(const Program& program) override {
    return std::make_unique<Interpreter>(*this, fragments_.Get(program.bytes));
  }
  MemoryStats memory_stats() const override { return memory_->memory_stats(); }
  void ResetPeakMemoryStats() override { memory_->ResetPeakMemoryStats(); }
  void AllowMemory(int64_t bytes) override { memory_->AllowMemory(bytes); }
  void EmptyCache() override { memory_->EmptyCache(); }

 private:
  Fragments& fragments_;
  const std::unique_ptr<Device> memory_ = host::MakeHostDevice(0, 1 << 20, nullptr);
};

bool fixed = false;
const TensorType kType{DType::kFloat32, {1}};

CallRef MakeBinary(const std::string& op, bool boundary) {
  auto call = MakeCall(op, 2, kType);
  call->boundary = boundary;
  call->structure_hash = 1;
  return call;
}
const CallRef kAdd = MakeBinary("test::add", false), kMultiply = MakeBinary("test::multiply", false),
              kDot = MakeBinary("test::dot", true);

// The same operations on the device, or on numbers.
class Recorded {
 public:
  using T = ValueRef;
  explicit Recorded(Engine& engine) : engine_(engine) {}
  T Make(float x) const { return MakeRef<Value>(&kType, nullptr, *engine_.device(0).MakeValue(kType, &x)); }
  T Record(const CallRef& call, const T& a, const T& b) const {
    const Operand operands[] = {{a.get(), 0}, {b.get(), 0}};
    T result;
    engine_.window(engine_.stream(0, 0)).Record(call, operands, {&result, 1});
    return result;
  }
  float Read(const T& x) const {
    EXPECT_TRUE(engine_.Await(x, "test").ok());
    return *static_cast<const float*>(x->buffer()->data());
  }
  void Cut() const { engine_.CutStream(engine_.stream(0, 0), CutReason::kSynchronize, "test"); }

 private:
  Engine& engine_;
};

struct Plain {
  using T = float;
  T Make(float x) const { return x; }
  T Record(const CallRef& call, T a, T b) const { return Apply(call->op, a, b); }
  float Read(T x) const { return x; }
  void Cut() const {}
};

enum class How { kOperation, kOperand, kRead, kReadOld, kKeep, kKeepOld, kCut, kCount };
constexpr int kParts = 4, kPart = 18, kUsual = -1;

// Four parts, each of which reads what the one before made and something from its middle; the state is replaced in
// each. At operation `leave_at` it does something else. All that is ever seen.
template <typename Machine>
std::vector<float> RunSteps(const Machine& m, int leave_at, How how) {
  using T = typename Machine::T;
  std::vector<float> seen;
  std::vector<T> kept;
  const T w = m.Make(5);
  T x = m.Make(2), state = m.Make(7), skip = x;
  for (int part = 0, i = 0; part < kParts; ++part) {
    T old = skip;
    for (int k = 0; k < kPart; ++k, ++i) {
      const bool leave = i == leave_at;
      CallRef call = k == 0 ? kDot : kAdd;
      T other = k == 0 ? w : k == 5 ? skip : k % 4 == 0 ? state : x;
      if (leave && how == How::kOperation) call = kMultiply;
      if (leave && how == How::kOperand) other = k % 4 == 1 ? w : old;
      x = m.Record(call, x, other);
      if (k == 9) skip = x;
      if (k == 12) state = m.Record(kAdd, state, x);
      if (!leave) continue;
      if (how == How::kRead) seen.push_back(m.Read(x));
      if (how == How::kReadOld) seen.push_back(m.Read(old));
      if (how == How::kKeep) kept.push_back(x);
      if (how == How::kKeepOld) kept.push_back(old);
      if (how == How::kCut) m.Cut();
    }
  }
  seen.push_back(m.Read(x));
  seen.push_back(m.Read(state));
  for (const T& value : kept) seen.push_back(m.Read(value));
  return seen;
}

class ClusterTest : public testing::Test {
 protected:
  ClusterTest() {
    setenv("TORCH_TPU_CACHE", "/dev/null/none", 1);
    setenv("TORCH_TPU_CLUSTERS", "always", 1);
    setenv("TORCH_TPU_TUNE_BUDGET", "1e9", 1);
    Metrics::Get().Reset();
    fixed = false;
  }

  std::unique_ptr<Engine> MakeEngine() {
    auto backend = std::make_unique<Fragments>();
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(std::make_unique<InterpretingDevice>(*backend));
    auto engine = std::make_unique<Engine>(std::move(devices), std::move(backend));
    engine->set_call_runner(&RunCall);
    engine->set_fixed_hook([] { return fixed; });
    return engine;
  }
  static void Usual(Engine& engine, int times) {
    const std::vector<float> expected = RunSteps(Plain(), kUsual, How::kRead);
    for (int i = 0; i < times; ++i) {
      EXPECT_EQ(RunSteps(Recorded(engine), kUsual, How::kRead), expected);
      engine.WaitForCompiles();
    }
  }
  static int64_t Count(const std::string& name) { return Metrics::Get().Counters()[name]; }
};

TEST_F(ClusterTest, FragmentsThatFollowOneAnotherBecomeOne) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  Usual(*engine, 80);
  const int64_t launched = Count("fragments"), clusters = Count("launches_clusters");
  Usual(*engine, 1);
  EXPECT_EQ(Count("fragments") - launched, 1);  // up to the read
  EXPECT_EQ(Count("launches_clusters") - clusters, 1);
  EXPECT_EQ(Count("cluster_wrong_guesses"), 0);
  size_t most = 0;
  for (const ClusterRecord& record : engine->Clusters()) most = std::max(most, record.parts);
  EXPECT_EQ(most, kParts);
}

TEST_F(ClusterTest, LeavingAtEveryPointGivesTheSameValuesAndNoOtherFragments) {
  std::map<bool, std::multiset<std::string>> known;
  for (const bool apart : {true, false}) {
    fixed = apart;
    Metrics::Get().Reset();
    const std::unique_ptr<Engine> engine = MakeEngine();
    Usual(*engine, 80);
    EXPECT_EQ(Count("launches_clusters") > 0, !apart);
    for (int how = 0; how < static_cast<int>(How::kCount); ++how) {
      for (int leave_at = 0; leave_at < kParts * kPart; ++leave_at) {
        Usual(*engine, 1);
        EXPECT_EQ(RunSteps(Recorded(*engine), leave_at, How{how}), RunSteps(Plain(), leave_at, How{how}))
            << "left at " << leave_at << " by " << how;
      }
    }
    Usual(*engine, 2);
    EXPECT_EQ(Count("cluster_wrong_guesses") > 100, !apart);
    for (const FragmentRef& entry : engine->Fragments()) {
      if (!entry->cluster) known[apart].insert(entry->fragment.ToString());
    }
  }
  EXPECT_EQ(known[false], known[true]);
}

TEST_F(ClusterTest, NothingIsJoinedWhileResultsHaveToBeBitwiseEqual) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  Usual(*engine, 80);
  const int64_t clusters = Count("launches_clusters");
  EXPECT_GT(clusters, 0);
  fixed = true;
  Usual(*engine, 3);
  EXPECT_LE(Count("launches_clusters"), clusters + 1);  // the one that was expected already
}

TEST(ClusterTrialTest, TheVerdictIsTheMediansAndTheQuarters) {
  ClusterTrial faster, slower, lucky, unsteady;
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(faster.verdict(), ClusterTrial::Verdict::kOpen);
    for (ClusterTrial* trial : {&faster, &slower, &lucky}) trial->Add(false, i == 4 ? 1'000'000 : 1000);
    faster.Add(true, 960);
    slower.Add(true, 980);
    lucky.Add(true, i == 0 ? 900 : 980);
    unsteady.Add(false, i < 4 ? 950 : 1000);
    unsteady.Add(true, 960);
  }
  EXPECT_EQ(faster.verdict(), ClusterTrial::Verdict::kFaster);
  EXPECT_EQ(slower.verdict(), ClusterTrial::Verdict::kNotFaster);
  EXPECT_EQ(lucky.verdict(), ClusterTrial::Verdict::kNotFaster);
  EXPECT_EQ(unsteady.verdict(), ClusterTrial::Verdict::kNotFaster);
  EXPECT_EQ(faster.nanoseconds(true), 960);
}

}  // namespace
}  // namespace tpu

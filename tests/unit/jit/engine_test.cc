#include "jit/engine.h"

#include <cstdlib>
#include <cstring>
#include <latch>
#include <map>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "jit/fragment_table.h"
#include "jit/window.h"
#include "runtime/host/host_device.h"
#include "tests/unit/jit/call.h"

namespace tpu {
namespace {

// Compiles nothing before it is let go, and then nothing that runs.
class StuckBackend final : public CompilerBackend {
 public:
  absl::StatusOr<Program> Compile(const Fragment&, const Tuning&) override {
    let_go.wait();
    return absl::UnimplementedError("stuck");
  }
  bool HoldsCalls() const override { return true; }
  bool CanLower(const Call&) const override { return true; }
  bool IsBoundary(const Call&) const override { return false; }
  bool StaticScalars(const std::string&) const override { return false; }
  std::string Fingerprint() const override { return "stuck"; }

  std::latch let_go{1};
};

// Adds one to each of the floats of its operand.
absl::Status AddOne(Device& device, const Call&, absl::Span<const KernelInput> inputs, absl::Span<BufferRef> outputs) {
  const size_t bytes = inputs[0].argument.buffer->bytes();
  absl::StatusOr<BufferRef> out = device.Allocate(bytes);
  if (!out.ok()) return out.status();
  const auto* x = static_cast<const float*>(inputs[0].argument.buffer->data());
  for (size_t i = 0; i < bytes / sizeof(float); ++i) static_cast<float*>((*out)->data())[i] = x[i] + 1;
  outputs[0] = *std::move(out);
  return absl::OkStatus();
}

class EngineTest : public testing::Test {
 protected:
  static constexpr int64_t kElements = 2048;  // of which 64 fit in half of the device's memory

  EngineTest() {
    setenv("TORCH_TPU_CACHE", "/nowhere", 1);
    setenv("TORCH_TPU_KNOWN_OPS", std::to_string(kKnownOps).c_str(), 1);
    auto backend = std::make_unique<StuckBackend>();
    backend_ = backend.get();
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(host::MakeHostDevice(0, kMemory, nullptr));
    engine_ = std::make_unique<Engine>(std::move(devices), std::move(backend));
    engine_->set_call_runner(&AddOne);
    Metrics::Get().Reset();
  }
  ~EngineTest() override {
    if (!backend_->let_go.try_wait()) backend_->let_go.count_down();
  }

  ValueRef Zeros() {
    BufferRef buffer = *engine_->device(0).Allocate(type_.bytes());
    std::memset(buffer->data(), 0, buffer->bytes());
    return MakeRef<Value>(&type_, nullptr, std::move(buffer));
  }
  ValueRef Record(const ValueRef& x) {
    const Operand operand{x.get(), 0};
    ValueRef result;
    Stream& stream = engine_->stream(0, 0);
    engine_->window(stream).Record(call_, {&operand, 1}, {&result, 1});
    return result;
  }
  float Read(const ValueRef& x) {
    EXPECT_TRUE(engine_->Await(x, "test").ok());
    return static_cast<const float*>(x->buffer()->data())[0];
  }

  static constexpr int64_t kMemory = 1 << 20;
  static constexpr size_t kKnownOps = 1600;
  const TensorType type_{DType::kFloat32, {kElements}};
  const CallRef call_ = MakeCall("test::add_one", 1, type_);
  StuckBackend* backend_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, NobodyWaitsForACompile) {
  ValueRef x = Zeros();
  for (int step = 0; step < 100; ++step) {
    x = Record(x);
    EXPECT_EQ(Read(x), step + 1);  // the same fragment again and again: hot, its compile is stuck
  }
  std::map<std::string, int64_t> counters = Metrics::Get().Counters();
  EXPECT_EQ(counters["launches_tier0"], 100);
  EXPECT_EQ(counters["compile_wait_ms"], 0);
}

TEST_F(EngineTest, WindowsAreCutBeforeTheirResultsFillTheDevice) {
  ValueRef x = Zeros();
  std::vector<ValueRef> kept;
  const int64_t half = kMemory / type_.bytes() / 2;
  for (int64_t i = 0; i <= half; ++i) kept.push_back(x = Record(x));
  EXPECT_EQ(Metrics::Get().Counters()["cuts_memory"], 0);  // the caller may still give up what that call wrote over
  kept.push_back(x = Record(x));
  EXPECT_EQ(Metrics::Get().Counters()["cuts_memory"], 1);
  EXPECT_EQ(Read(x), static_cast<float>(half + 2));
}

TEST_F(EngineTest, FragmentsThatDoNotComeBackAreGivenUp) {
  backend_->let_go.count_down();
  // A fragment of its own for each pair.
  const auto run = [&](int length, int kept) {
    ValueRef x = Zeros(), y;
    for (int i = 1; i <= length; ++i) {
      x = Record(x);
      if (i == kept) y = x;
    }
    EXPECT_EQ(Read(x), length);
    EXPECT_EQ(Read(y), kept);
    engine_->WaitForCompiles();
  };
  const auto known_ops = [&] {
    size_t ops = 0;
    for (const FragmentRef& entry : engine_->Fragments()) ops += entry->fragment.nodes.size();
    return ops;
  };
  int runs = 0;
  for (int round = 0; round < 2; ++round) {
    for (int length = 2; length <= 40; ++length) {
      for (int kept = 1; kept < length; ++kept, ++runs) {
        run(length, kept);
        run(50, 25);
        ASSERT_LE(known_ops(), kKnownOps + kKnownOps / 8 + 40);
      }
    }
  }
  EXPECT_GT(known_ops(), kKnownOps / 2);
  EXPECT_EQ(Metrics::Get().Counters()["fragments_given_up"] + static_cast<int64_t>(engine_->Fragments().size()),
            runs + 1);
  EXPECT_EQ(Metrics::Get().Counters()["fragments_distinct"], runs + 1);  // the one that comes back was made once
}

}  // namespace
}  // namespace tpu

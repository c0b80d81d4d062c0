// What every Device must do, whatever it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/conformance/registry.h"

namespace tpu::conformance {
namespace {

constexpr int64_t kMemory = 64 << 20;

class DeviceTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::string full = testing::UnitTest::GetInstance()->current_test_info()->name();
    auto excluded = Case().excluded.find(full.substr(0, full.find('/')));
    if (excluded != Case().excluded.end()) GTEST_SKIP() << excluded->second;
    device_ = Case().make(kMemory);
  }
  const DeviceCase& Case() const { return Cases()[static_cast<size_t>(GetParam())]; }

  std::unique_ptr<Executable> Load(const Program& program) {
    absl::StatusOr<std::unique_ptr<Executable>> executable = device_->Load(program);
    EXPECT_TRUE(executable.ok()) << executable.status();
    return executable.ok() ? *std::move(executable) : nullptr;
  }
  template <typename T>
  BufferRef Upload(const std::vector<T>& values) {
    const DType dtype = std::is_same_v<T, float> ? DType::kFloat32 : DType::kInt64;
    absl::StatusOr<BufferRef> buffer =
        device_->MakeValue({dtype, {static_cast<int64_t>(values.size())}}, values.data());
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *buffer;
  }
  std::vector<float> Download(const BufferRef& buffer, size_t n) {
    std::vector<float> values(n, -1);
    EXPECT_TRUE(device_->CopyToHost(buffer, values.data(), n * sizeof(float)).ok());
    return values;
  }
  static absl::Status Explained(const absl::Status& error) {
    return absl::Status(error.code(), absl::StrCat(error.message(), ", explained"));
  }
  static std::vector<float> Iota(size_t n) {
    std::vector<float> values(n);
    std::iota(values.begin(), values.end(), 0.0f);
    return values;
  }

  std::unique_ptr<Device> device_;
};

TEST_P(DeviceTest, DescribesItself) {
  EXPECT_EQ(device_->index(), 0);
  EXPECT_FALSE(device_->Describe().empty());
  EXPECT_FALSE(device_->Target().empty());
  EXPECT_EQ(device_->Target(), Case().make(kMemory)->Target()) << "it is part of cache keys";
}

TEST_P(DeviceTest, CopiesThereAndBack) {
  for (size_t n : {size_t{0}, size_t{1}, size_t{1000}, size_t{3} << 20}) {
    const std::vector<float> values = Iota(n);
    const BufferRef buffer = Upload(values);
    EXPECT_EQ(buffer->bytes(), n * sizeof(float));
    EXPECT_EQ(Download(buffer, n), values);
  }
}

TEST_P(DeviceTest, RefusesCopiesBeyondABuffer) {
  const BufferRef buffer = Upload(std::vector<float>{1, 2});
  char data[64] = {};
  EXPECT_EQ(device_->CopyToHost(buffer, data, 64).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device_->CopyToHost(nullptr, data, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Download(buffer, 2), (std::vector<float>{1, 2}));
}

TEST_P(DeviceTest, Launches) {
  for (int64_t n : {1, 7, 100000}) {
    auto add = Load(Case().add(n));
    const std::vector<float> x = Iota(static_cast<size_t>(n));
    Argument inputs[] = {{.buffer = Upload(x)}, {.buffer = Upload(x)}};
    BufferRef output[1];
    ASSERT_TRUE(add->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok());
    EXPECT_EQ(Download(output[0], x.size()).back(), 2 * x.back());
    EXPECT_EQ(Download(inputs[1].buffer, x.size()), x) << "inputs that were not donated stay";
  }
}

TEST_P(DeviceTest, WritesOverADonatedBuffer) {
  auto add = Load(Case().add(1 << 20));
  const std::vector<float> x = Iota(1 << 20);
  Argument inputs[] = {{.buffer = Upload(x)}, {.buffer = Upload(x), .donated = true}};
  device_->ResetPeakMemoryStats();
  const int64_t before = device_->memory_stats().allocated_bytes;
  BufferRef output[1];
  ASSERT_TRUE(add->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok());
  EXPECT_EQ(Download(output[0], x.size())[77], 154);
  EXPECT_LT(device_->memory_stats().peak_allocated_bytes, before + (1 << 22)) << "no memory for the output";
}

TEST_P(DeviceTest, LeavesADonatedBufferThatOthersHold) {
  auto add = Load(Case().add(4));
  BufferRef held = Upload(std::vector<float>{1, 1, 1, 1});
  Argument inputs[] = {{.buffer = Upload(Iota(4))}, {.buffer = held, .donated = true}};
  BufferRef output[1];
  ASSERT_TRUE(add->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok());
  EXPECT_EQ(Download(held, 4), (std::vector<float>{1, 1, 1, 1}));
  EXPECT_EQ(Download(output[0], 4), (std::vector<float>{1, 2, 3, 4}));
}

TEST_P(DeviceTest, OneBufferAsBothInputsIsNotWrittenOver) {
  auto add = Load(Case().add(4));
  BufferRef x = Upload(Iota(4));
  Argument inputs[] = {{.buffer = x}, {.buffer = std::move(x), .donated = true}};
  BufferRef output[1];
  ASSERT_TRUE(add->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok());
  EXPECT_EQ(Download(inputs[0].buffer, 4), Iota(4));
  EXPECT_EQ(Download(output[0], 4), (std::vector<float>{0, 2, 4, 6}));
}

TEST_P(DeviceTest, SharesTheBufferOfAnUnchangedInput) {
  auto identity = Load(Case().identity(4));
  Argument inputs[] = {{.buffer = Upload(Iota(4))}};
  BufferRef outputs[2];
  const int64_t before = device_->memory_stats().allocated_bytes;
  ASSERT_TRUE(identity->Launch(absl::MakeSpan(inputs), absl::MakeSpan(outputs), nullptr).ok());
  EXPECT_EQ(device_->memory_stats().allocated_bytes, before);
  EXPECT_EQ(Download(outputs[0], 4), Iota(4));
  EXPECT_EQ(Download(outputs[1], 4), Iota(4));
}

TEST_P(DeviceTest, ReportsAnErrorOfAKernelAndGoesOn) {
  auto take = Load(Case().take(10, 3));
  Argument inputs[] = {{.buffer = Upload(Iota(10))}, {.buffer = Upload(std::vector<int64_t>{0, 10, 2})}};
  BufferRef output[1];
  absl::Status status = take->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr, Explained);
  if (status
          .ok()) {  // the device runs on behind Launch: the error belongs to the result, however often it is asked for
    status = device_->Wait(output[0]);
    EXPECT_EQ(status.message(), "index out of range, explained");
    EXPECT_EQ(device_->Wait(output[0]), status);
    float values[3];
    EXPECT_EQ(device_->CopyToHost(output[0], values, sizeof values), status);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  inputs[1].buffer = Upload(std::vector<int64_t>{0, 9, 2});
  ASSERT_TRUE(take->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok());
  EXPECT_EQ(Download(output[0], 3), (std::vector<float>{0, 9, 2}));
}

TEST_P(DeviceTest, AnErrorReachesWhatIsComputedFromItsResults) {
  auto take = Load(Case().take(10, 4));
  auto add = Load(Case().add(4));
  Argument inputs[] = {{.buffer = Upload(Iota(10))}, {.buffer = Upload(std::vector<int64_t>{0, 1, 2, 99})}};
  BufferRef taken[1], sum[1], again[1];
  if (!take->Launch(absl::MakeSpan(inputs), absl::MakeSpan(taken), nullptr, Explained).ok()) return;  // at once
  Argument both[] = {{.buffer = taken[0]}, {.buffer = Upload(Iota(4))}};
  ASSERT_TRUE(add->Launch(absl::MakeSpan(both), absl::MakeSpan(sum), nullptr, Explained).ok());
  const absl::Status status = device_->Wait(sum[0]);
  EXPECT_EQ(status.message(), "index out of range, explained") << "by the launch that failed, and by no other";
  both[0].buffer = sum[0];  // known to have failed when this is launched
  ASSERT_TRUE(add->Launch(absl::MakeSpan(both), absl::MakeSpan(again), nullptr, Explained).ok());
  EXPECT_EQ(device_->Wait(again[0]), status);
  EXPECT_TRUE(device_->Wait(both[1].buffer).ok()) << "an input that was fine";
}

TEST_P(DeviceTest, SynchronizesMoreLaunchesThanItQueues) {
  auto add = Load(Case().add(1000));
  BufferRef one = Upload(std::vector<float>(1000, 1)), sum = Upload(std::vector<float>(1000, 0));
  for (int i = 0; i < 100; ++i) {
    Argument inputs[] = {{.buffer = one}, {.buffer = std::move(sum), .donated = true}};
    BufferRef output[1];
    ASSERT_TRUE(add->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok());
    sum = std::move(output[0]);
  }
  device_->Synchronize(nullptr);
  EXPECT_TRUE(device_->Idle(nullptr));
  EXPECT_EQ(Download(sum, 1000), std::vector<float>(1000, 100));
}

TEST_P(DeviceTest, HandsNodesToTheRunnerAndPassesItsErrorOn) {
  auto call = Load(Case().call(4));
  EXPECT_EQ(call->calls_per_launch(), 1);
  Argument inputs[] = {{.buffer = Upload(Iota(4))}};
  BufferRef output[1];
  auto add_one = [&](int node, absl::Span<const Argument> in, absl::Span<BufferRef> out) {
    EXPECT_EQ(node, 3);
    std::vector<float> values = Download(in[0].buffer, 4);
    for (float& v : values) v += 1;
    out[0] = Upload(values);
    return absl::OkStatus();
  };
  ASSERT_TRUE(call->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), add_one).ok());
  EXPECT_EQ(Download(output[0], 4), (std::vector<float>{1, 2, 3, 4}));
  auto fails = [](int, absl::Span<const Argument>, absl::Span<BufferRef>) { return absl::DataLossError("gone"); };
  EXPECT_EQ(call->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), fails), absl::DataLossError("gone"));
}

TEST_P(DeviceTest, MultipliesOrLeavesTheResultAlone) {
  // A is transposed, with gaps; B is the same for the whole batch.
  constexpr int64_t kBatch = 2, kM = 48, kN = 40, kK = 33;
  std::vector<float> a(kBatch * kK * (kM + 3)), b(kK * kN), c(kBatch * kM * kN, -1);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 7) - 3;
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 5) - 2;
  const bool done = device_->Multiply({.batch = kBatch,
                                       .m = kM,
                                       .n = kN,
                                       .k = kK,
                                       .trans_a = true,
                                       .lda = kM + 3,
                                       .ldb = kN,
                                       .stride_a = kK * (kM + 3),
                                       .a = a.data(),
                                       .b = b.data(),
                                       .c = c.data()});
  for (int64_t i = 0; i < kBatch * kM * kN; ++i) {
    float sum = done ? 0 : -1;
    for (int64_t p = 0; done && p < kK; ++p) {
      sum += a[(i / (kM * kN) * kK + p) * (kM + 3) + i / kN % kM] * b[p * kN + i % kN];
    }
    ASSERT_EQ(c[i], sum) << i;
  }
}

TEST_P(DeviceTest, ConvolvesOrLeavesTheResultAlone) {
  constexpr int64_t kIn = 4, kOut = 8, kSize = 6;
  std::vector<float> x(kIn * kSize * kSize), w(kOut * kIn * 9), y(kOut * kSize * kSize, -1);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 5) - 2;
  Convolution c;
  c.in = kIn;
  c.out = kOut;
  c.rows = c.cols = {.in = kSize, .out = kSize, .kernel = 3, .low = 1};
  const bool done = device_->Convolve(c, x.data(), w.data(), y.data());
  for (int64_t i = 0; i < kOut * kSize * kSize; ++i) {
    float sum = done ? 0 : -1;
    for (int64_t j = 0; done && j < kIn * 9; ++j) {
      const int64_t row = i / kSize % kSize + j / 3 % 3 - 1, col = i % kSize + j % 3 - 1;
      if (row < 0 || row >= kSize || col < 0 || col >= kSize) continue;
      sum += x[(j / 9 * kSize + row) * kSize + col] * w[i / (kSize * kSize) * kIn * 9 + j];
    }
    ASSERT_EQ(y[i], sum) << i;
  }
}

TEST_P(DeviceTest, RefusesInputsThatAreNotTheProgramsOwn) {
  auto add = Load(Case().add(100));
  BufferRef output[1];
  Argument small[] = {{.buffer = Upload(Iota(100))}, {.buffer = Upload(Iota(99))}};
  EXPECT_EQ(add->Launch(absl::MakeSpan(small), absl::MakeSpan(output), nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  Argument one[] = {{.buffer = Upload(Iota(100))}};
  EXPECT_EQ(add->Launch(absl::MakeSpan(one), absl::MakeSpan(output), nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(DeviceTest, RefusesProgramsItCannotRead) {
  Program program = Case().add(4);
  program.format = "punched cards";
  EXPECT_FALSE(device_->Load(program).ok());
  program = Case().add(4);
  program.bytes.resize(program.bytes.size() / 2);
  EXPECT_FALSE(device_->Load(program).ok());
  program = Case().add(4);
  program.bytes.clear();
  EXPECT_FALSE(device_->Load(program).ok());
}

TEST_P(DeviceTest, CountsMemory) {
  const MemoryStats start = device_->memory_stats();
  EXPECT_EQ(start.limit_bytes, kMemory);
  BufferRef buffer = *device_->MakeValue({DType::kFloat32, {1 << 18}}, nullptr);
  MemoryStats now = device_->memory_stats();
  EXPECT_EQ(now.allocated_bytes, start.allocated_bytes + (1 << 20));
  EXPECT_EQ(now.num_allocs, start.num_allocs + 1);
  EXPECT_GE(now.reserved_bytes, now.allocated_bytes);
  buffer = nullptr;
  now = device_->memory_stats();
  EXPECT_EQ(now.allocated_bytes, start.allocated_bytes);
  EXPECT_GE(now.peak_allocated_bytes, start.allocated_bytes + (1 << 20));
  device_->ResetPeakMemoryStats();
  EXPECT_EQ(device_->memory_stats().peak_allocated_bytes, start.allocated_bytes);
  device_->EmptyCache();
  EXPECT_LE(device_->memory_stats().reserved_bytes, now.reserved_bytes);
}

TEST_P(DeviceTest, AllocatesNoMoreThanIsAllowed) {
  device_->AllowMemory(16 << 20);
  EXPECT_EQ(device_->memory_stats().limit_bytes, kMemory);
  EXPECT_EQ(device_->memory_stats().allowed_bytes, 16 << 20);
  {
    const BufferRef held = *device_->Allocate(12 << 20);
    const absl::Status status = device_->Allocate(8 << 20).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(status.message().find("16.00 MiB allowed"), absl::string_view::npos) << status;
    EXPECT_TRUE(device_->Allocate(4 << 20).ok());
  }
  device_->AllowMemory(2 * kMemory);
  EXPECT_EQ(device_->memory_stats().allowed_bytes, kMemory);
  EXPECT_TRUE(device_->Allocate(24 << 20).ok());
}

TEST_P(DeviceTest, RunsOutOfMemoryWithTheNumbersAndGoesOn) {
  std::vector<BufferRef> held;
  absl::Status status;
  while (status.ok()) {
    absl::StatusOr<BufferRef> buffer = device_->Allocate(8 << 20);
    status = buffer.status();
    if (buffer.ok()) held.push_back(*buffer);
    ASSERT_LE(held.size(), static_cast<size_t>(kMemory / (8 << 20)));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("Tried to allocate 8.00 MiB"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("64.00 MiB"), absl::string_view::npos) << status;
  EXPECT_GE(device_->memory_stats().num_ooms, 1);
  held.pop_back();
  EXPECT_TRUE(device_->Allocate(8 << 20).ok());
}

TEST_P(DeviceTest, ALaunchThatDoesNotFitIsAnErrorAndLeaksNothing) {
  constexpr int64_t kElements = 6 << 20;  // two inputs of 24 MiB fit, the output does not
  auto add = Load(Case().add(kElements));
  const std::vector<float> x(kElements, 1);
  Argument inputs[] = {{.buffer = Upload(x)}, {.buffer = Upload(x)}};
  const int64_t before = device_->memory_stats().allocated_bytes;
  {
    BufferRef output[1];
    EXPECT_EQ(add->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).code(),
              absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(device_->memory_stats().allocated_bytes, before);
  inputs[1].donated = true;
  BufferRef output[1];
  EXPECT_TRUE(add->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok()) << "donation needs no memory";
  EXPECT_EQ(Download(output[0], kElements).back(), 2);
}

TEST_P(DeviceTest, ServesManyThreads) {
  auto add = Load(Case().add(3000));
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        const float value = static_cast<float>(t * 100 + i);
        Argument inputs[] = {{.buffer = Upload(std::vector<float>(3000, value))},
                             {.buffer = Upload(std::vector<float>(3000, 1)), .donated = i % 2 == 0}};
        BufferRef output[1];
        ASSERT_TRUE(add->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok());
        ASSERT_EQ(Download(output[0], 3000), std::vector<float>(3000, value + 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device_->memory_stats().allocated_bytes, 0);
}

std::vector<int> Indices() {
  std::vector<int> indices(Cases().size());
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

INSTANTIATE_TEST_SUITE_P(Conformance, DeviceTest, testing::ValuesIn(Indices()),
                         [](const auto& info) { return Cases()[static_cast<size_t>(info.param)].name; });

TEST(Exclusions, NameTestsThatExist) {
  std::set<std::string> names;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int i = 0; i < suite.total_test_count(); ++i) {
      const std::string full = suite.GetTestInfo(i)->name();
      names.insert(full.substr(0, full.find('/')));
    }
  }
  for (const DeviceCase& device_case : Cases()) {
    for (const auto& [test, reason] : device_case.excluded) {
      EXPECT_TRUE(names.count(test)) << device_case.name << " excludes " << test << ", which is no test";
      EXPECT_FALSE(reason.empty()) << device_case.name << " excludes " << test << " without a reason";
    }
  }
}

}  // namespace
}  // namespace tpu::conformance

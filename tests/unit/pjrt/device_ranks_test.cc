// Collectives that the CPU plugin's devices run themselves, ranks as threads: every verb, operator and type gives what
// ranks that share memory get; and what ranks hear of one that diverges, stalls or leaves.
#include "collectives/device_ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "collectives/shared_memory.h"
#include "compiler/stablehlo/exchange.h"
#include "runtime/pjrt/module.h"
#include "runtime/pjrt/pjrt_device.h"

namespace tpu {
namespace {

using Bytes = std::vector<char>;
using std::chrono::milliseconds;

constexpr int kDevices = 4;

Device& DeviceOf(int rank) {
  static auto* devices = [] {
    auto made =
        pjrt::MakeDevices({.plugin = TORCH_TPU_CPU_PLUGIN, .options = "cpu_device_count=" + std::to_string(kDevices)});
    if (!made.ok()) throw std::runtime_error(made.status().ToString());
    return new std::vector<std::unique_ptr<Device>>(*std::move(made));
  }();
  return *(*devices)[static_cast<size_t>(rank)];
}

struct Rank {
  Group& host;  // the reference, on a segment of its own
  Group& group;
  DeviceRanks& ranks;
  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
};

std::vector<absl::Status> RunRanks(int size, const std::function<absl::Status(Rank)>& body, int timeout_ms = 60000,
                                   ExchangeCompiler compile = &stablehlo::CompileExchange) {
  std::shared_ptr<Segment> segments[] = {*Segment::Create(size), *Segment::Create(size)};
  DeviceRanks ranks(size, std::move(compile));
  std::vector<std::unique_ptr<Group>> groups[2];
  for (int r = 0; r < size; ++r) {
    for (int i : {0, 1}) groups[i].push_back(MakeSharedMemoryGroup(segments[i], r, milliseconds(timeout_ms)));
  }
  std::vector<absl::Status> statuses(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      const size_t self = static_cast<size_t>(r);
      statuses[self] = body({*groups[0][self], *groups[1][self], ranks});
    });
  }
  for (std::thread& t : threads) t.join();
  return statuses;
}

void ExpectOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& s : statuses) EXPECT_TRUE(s.ok()) << s;
}

// Small numbers, so that all types hold sums and products of four.
Bytes Elements(DType dtype, int64_t count, int seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  Bytes bytes(static_cast<size_t>(count) * SizeOf(dtype));
  const auto fill = [&](auto make) {
    using T = decltype(make(0.0));
    for (size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
      const T value = make(static_cast<double>(random() % 4));
      std::memcpy(bytes.data() + i, &value, sizeof(T));
    }
  };
  switch (dtype) {
    case DType::kFloat32:
    case DType::kComplex64:
      fill([](double x) { return static_cast<float>(x - 1.5); });
      break;
    case DType::kFloat64:
    case DType::kComplex128:
      fill([](double x) { return x - 1.5; });
      break;
    case DType::kFloat16:
      fill([](double x) { return static_cast<_Float16>(x - 1.5); });
      break;
    case DType::kBFloat16:
      fill([](double x) {
        const float f = static_cast<float>(x - 1.5);
        uint32_t bits;
        std::memcpy(&bits, &f, sizeof bits);
        return static_cast<uint16_t>(bits >> 16);
      });
      break;
    default:
      for (size_t i = 0; i < bytes.size(); i += SizeOf(dtype)) {
        bytes[i] = static_cast<char>(random() % (dtype == DType::kBool ? 2 : 4));
      }
  }
  return bytes;
}

// A mean may be the sum times a reciprocal: within PyTorch's tolerance for elements of T.
template <typename T>
bool AreClose(const Bytes& a, const Bytes& b, double tolerance) {
  for (size_t i = 0; i + sizeof(T) <= a.size(); i += sizeof(T)) {
    T x, y;
    std::memcpy(&x, a.data() + i, sizeof(T));
    std::memcpy(&y, b.data() + i, sizeof(T));
    if (!(std::abs(static_cast<double>(x) - static_cast<double>(y)) <= tolerance * std::abs(static_cast<double>(y)))) {
      return false;
    }
  }
  return true;
}

bool AreClose(DType dtype, const Bytes& a, const Bytes& b) {
  if (dtype == DType::kFloat32 || dtype == DType::kComplex64) return AreClose<float>(a, b, 1.3e-6);
  if (dtype == DType::kFloat64 || dtype == DType::kComplex128) return AreClose<double>(a, b, 1e-7);
  return a == b;
}

// Runs `c`, whose pieces have sizes only, both ways on the same elements. Operand `in` is a matrix with a row in front
// that is no part of it.
absl::Status Compare(Rank rank, Collective c, int64_t front = 0) {
  const int64_t element = static_cast<int64_t>(SizeOf(c.dtype));
  auto part = std::make_shared<DeviceRanks::Part>();
  part->device = &DeviceOf(rank.rank());
  std::vector<Bytes> in, expected;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const int64_t count = c.inputs[i].bytes / element;
    in.push_back(Elements(c.dtype, front + count, rank.rank() * 100 + static_cast<int>(i)));
    const TensorType type{c.dtype, {1, front + count}};
    part->sources.push_back({type, front, {count}});
    absl::StatusOr<BufferRef> buffer = part->device->MakeValue(type, in.back().data());
    if (!buffer.ok()) return buffer.status();
    part->inputs.push_back({*std::move(buffer)});
  }
  for (const Piece& p : c.outputs) {
    expected.emplace_back(static_cast<size_t>(p.bytes));
    part->targets.push_back({{c.dtype, {p.bytes / element, 1}}, 0, {p.bytes / element}});
  }
  part->collective = c;
  part->collective.by_devices = true;
  for (size_t i = 0; i < in.size(); ++i) c.inputs[i].data = in[i].data() + front * element;
  for (size_t i = 0; i < expected.size(); ++i) c.outputs[i].data = expected[i].data();
  if (absl::Status s = rank.host.Run(c); !s.ok()) return s;
  const absl::StatusOr<bool> ran = rank.ranks.Run(rank.group, part);
  if (!ran.ok()) {
    rank.group.Fail(ran.status());
    return ran.status();
  }
  EXPECT_TRUE(*ran);
  for (size_t i = 0; i < expected.size(); ++i) {
    Bytes got(expected[i].size());
    if (absl::Status s = part->device->CopyToHost(part->outputs[i], got.data(), got.size()); !s.ok()) return s;
    if (AreClose(c.dtype, got, expected[i])) continue;
    return absl::InternalError(c.Describe() + " of " + std::to_string(rank.size()) + " ranks");
  }
  return absl::OkStatus();
}

constexpr Verb kVerbs[] = {Verb::kBroadcast,     Verb::kScatter,   Verb::kGather, Verb::kAllGather,
                           Verb::kReduceScatter, Verb::kAllReduce, Verb::kReduce, Verb::kAllToAll};
constexpr ReduceOp kOps[] = {ReduceOp::kSum,   ReduceOp::kAverage, ReduceOp::kProduct,
                             ReduceOp::kMin,   ReduceOp::kMax,     ReduceOp::kBitAnd,
                             ReduceOp::kBitOr, ReduceOp::kBitXor,  ReduceOp::kPremulSum};

// The pieces that `verb` takes, of sizes(from, to) elements.
Collective Pieces(Rank rank, Verb verb, DType dtype, int root, const std::function<int64_t(int, int)>& sizes) {
  Collective c{.verb = verb, .dtype = dtype, .scale = 2.0 + rank.rank(), .peer = root};
  const int self = rank.rank();
  const bool at_root = self == root;
  const auto piece = [&](int from, int to) {
    return Piece{nullptr, sizes(from, to) * static_cast<int64_t>(SizeOf(dtype))};
  };
  for (int r = 0; r < rank.size(); ++r) {
    const bool sends_all = verb == Verb::kAllToAll || (verb == Verb::kScatter && at_root);
    if (sends_all) c.inputs.push_back(piece(self, r));
    if (verb == Verb::kReduceScatter) c.inputs.push_back(piece(r, r));
    if (verb == Verb::kAllToAll) c.outputs.push_back(piece(r, self));
    if (verb == Verb::kAllGather || (verb == Verb::kGather && at_root)) c.outputs.push_back(piece(r, r));
  }
  switch (verb) {
    case Verb::kBroadcast:
      (at_root ? c.inputs : c.outputs).push_back(piece(root, root));
      break;
    case Verb::kScatter:
      c.outputs.push_back(piece(root, self));
      break;
    case Verb::kGather:
    case Verb::kAllGather:
      c.inputs.push_back(piece(self, self));
      break;
    case Verb::kReduceScatter:
      c.outputs.push_back(piece(self, self));
      break;
    case Verb::kAllReduce:
    case Verb::kReduce:
      c.inputs.push_back(piece(root, root));
      if (verb == Verb::kAllReduce || at_root) c.outputs.push_back(piece(root, root));
      break;
    default:
      break;
  }
  return c;
}

TEST(DeviceRanks, SumOfTwo) {
  ExpectOk(RunRanks(2, [](Rank rank) {
    return Compare(rank, Pieces(rank, Verb::kAllReduce, DType::kFloat32, 0, [](int, int) { return 6; }));
  }));
}

class OfType : public testing::TestWithParam<DType> {};

TEST_P(OfType, EveryVerbAndOperator) {
  ExpectOk(RunRanks(3, [](Rank rank) {
    for (Verb verb : kVerbs) {
      for (ReduceOp op : kOps) {
        Collective c = Pieces(rank, verb, GetParam(), 1, [](int, int) { return 5; });
        c.op = op;
        if (!Reduces(verb) && op != ReduceOp::kSum) continue;
        if (!Check(c, rank.rank(), rank.size()).ok()) continue;
        if (absl::Status s = Compare(rank, c); !s.ok()) return s;
      }
    }
    return absl::OkStatus();
  }));
}

std::vector<DType> AllTypes() {
  std::vector<DType> types;
  for (int t = 0; t < kNumDTypes; ++t) types.push_back(static_cast<DType>(t));
  return types;
}
INSTANTIATE_TEST_SUITE_P(DeviceRanks, OfType, testing::ValuesIn(AllTypes()),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

TEST(DeviceRanks, EveryVerbRanksAndSize) {
  for (int size = 1; size <= kDevices; ++size) {
    ExpectOk(RunRanks(size, [](Rank rank) {
      for (Verb verb : kVerbs) {
        for (int64_t count : {0, 1, 7, 10'001}) {
          for (int root = 0; root < rank.size(); root += 2) {
            Collective c = Pieces(rank, verb, DType::kFloat32, root, [&](int, int) { return count; });
            if (absl::Status s = Compare(rank, c); !s.ok()) return s;
          }
        }
      }
      return absl::OkStatus();
    }));
  }
}

// All_reduces of one group, one after the other.
absl::Status RunMany(Rank rank, int times) {
  for (int i = 0; i < times; ++i) {
    Collective c = Pieces(rank, Verb::kAllReduce, DType::kFloat32, 0, [&](int, int) { return 1000; });
    if (absl::Status s = Compare(rank, c); !s.ok()) return s;
  }
  return absl::OkStatus();
}

TEST(DeviceRanks, GroupsOfTheSameDevicesDoNotWaitForEachOther) {
  std::vector<std::thread> groups;
  for (int g = 0; g < 3; ++g) {
    groups.emplace_back([] { ExpectOk(RunRanks(kDevices, [](Rank rank) { return RunMany(rank, 50); })); });
  }
  for (std::thread& t : groups) t.join();
}

TEST(DeviceRanks, NothingIsHeldAfterwards) {
  for (int r = 0; r < kDevices; ++r) EXPECT_EQ(DeviceOf(r).memory_stats().allocated_bytes, 0);
  std::vector<int64_t> held(2);
  ExpectOk(RunRanks(2, [&](Rank rank) {
    absl::Status status = RunMany(rank, 1);
    held[static_cast<size_t>(rank.rank())] = DeviceOf(rank.rank()).memory_stats().allocated_bytes;
    return status;
  }));
  EXPECT_EQ(held, std::vector<int64_t>(2, 0));
}

// A value whose launch fails behind the caller's back: it reads an index out of range.
BufferRef FailingValue(Device& device, const TensorType& type) {
  pjrt::Module module;
  module.text = R"(module @fails { func.func public @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<i1>) {
    %0 = stablehlo.add %x, %x : tensor<4xf32>
    %outside = stablehlo.constant dense<true> : tensor<i1>
    return %0, %outside : tensor<4xf32>, tensor<i1> } })";
  module.outputs = {{false, 0}};
  module.results = 1;
  module.checked = true;
  module.donors = {-1};
  auto executable =
      *device.Load({.format = pjrt::kFormat, .bytes = module.Serialize(), .inputs = {type}, .outputs = {type}});
  Argument in;
  in.buffer = *device.MakeValue(type, nullptr);
  BufferRef out;
  EXPECT_TRUE(executable->Launch({&in, 1}, {&out, 1}, nullptr).ok());
  return out;
}

TEST(DeviceRanks, AnOperandThatFailedIsEverybodysError) {
  for (bool known : {false, true}) {
    const std::vector<absl::Status> statuses = RunRanks(2, [&](Rank rank) {
      const TensorType type{DType::kFloat32, {4}};
      auto part = std::make_shared<DeviceRanks::Part>();
      part->device = &DeviceOf(rank.rank());
      part->inputs.push_back(
          {rank.rank() == 1 ? FailingValue(*part->device, type) : *part->device->MakeValue(type, nullptr)});
      if (known) (void)part->device->Wait(part->inputs[0].buffer);
      part->sources = part->targets = {{type, 0, {4}}};
      part->collective = {.verb = Verb::kAllReduce, .dtype = DType::kFloat32};
      part->collective.inputs = part->collective.outputs = {{nullptr, 16}};
      part->collective.by_devices = true;
      if (absl::StatusOr<bool> ran = rank.ranks.Run(rank.group, part); !ran.ok()) return ran.status();
      return part->device->Wait(part->outputs[0]);
    });
    for (const absl::Status& s : statuses) EXPECT_TRUE(absl::IsOutOfRange(s)) << s;
  }
}

TEST(DeviceRanks, PiecesOfDifferentSizesFromTheMiddleOfValues) {
  ExpectOk(RunRanks(3, [](Rank rank) {
    for (Verb verb : {Verb::kAllGather, Verb::kAllToAll, Verb::kReduceScatter}) {
      for (int64_t count : {0, 40}) {
        Collective c = Pieces(rank, verb, DType::kInt32, 0, [&](int from, int to) { return count + from + 2 * to; });
        if (absl::Status s = Compare(rank, c, 3); !s.ok()) return s;
      }
    }
    return absl::OkStatus();
  }));
}

TEST(DeviceRanks, NotANumberWins) {
  ExpectOk(RunRanks(2, [](Rank rank) {
    for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      for (int with_nan : {0, 1}) {
        auto part = std::make_shared<DeviceRanks::Part>();
        part->device = &DeviceOf(rank.rank());
        const TensorType type{DType::kFloat32, {2}};
        const float mine[] = {rank.rank() == with_nan ? NAN : 1.0f, static_cast<float>(rank.rank())};
        part->inputs.push_back({*part->device->MakeValue(type, mine)});
        part->sources = part->targets = {{type, 0, {2}}};
        part->collective = {.verb = Verb::kAllReduce, .dtype = DType::kFloat32, .op = op};
        part->collective.inputs = part->collective.outputs = {{nullptr, 8}};
        part->collective.by_devices = true;
        if (absl::StatusOr<bool> ran = rank.ranks.Run(rank.group, part); !ran.ok()) return ran.status();
        float got[2];
        if (absl::Status s = part->device->CopyToHost(part->outputs[0], got, sizeof got); !s.ok()) return s;
        EXPECT_TRUE(std::isnan(got[0]));
        EXPECT_EQ(got[1], op == ReduceOp::kMax ? 1.0f : 0.0f);
      }
    }
    return absl::OkStatus();
  }));
}

TEST(DeviceRanks, OnOneDeviceDoNothingAndSaySo) {
  ExpectOk(RunRanks(2, [](Rank rank) {
    auto part = std::make_shared<DeviceRanks::Part>();
    part->device = &DeviceOf(0);
    part->collective = Pieces(rank, Verb::kAllReduce, DType::kFloat32, 0, [](int, int) { return 4; });
    part->collective.by_devices = true;
    const absl::StatusOr<bool> ran = rank.ranks.Run(rank.group, part);
    EXPECT_TRUE(ran.ok() && !*ran);
    return ran.status();
  }));
}

// What each rank hears when they run these.
std::vector<absl::Status> Statuses(int size, const std::function<Collective(Rank)>& of, int timeout_ms = 60000) {
  return RunRanks(
      size,
      [&](Rank rank) {
        auto part = std::make_shared<DeviceRanks::Part>();
        part->device = &DeviceOf(rank.rank());
        part->collective = of(rank);
        part->collective.by_devices = true;
        return rank.ranks.Run(rank.group, part).status();
      },
      timeout_ms);
}

void ExpectAll(const std::vector<absl::Status>& statuses, const std::vector<std::string>& words) {
  for (const absl::Status& s : statuses) {
    EXPECT_FALSE(s.ok());
    for (const std::string& w : words) EXPECT_NE(std::string(s.message()).find(w), std::string::npos) << s;
  }
}

TEST(DeviceRanks, OneThatDoesSomethingElseIsNamedToAll) {
  ExpectAll(Statuses(3,
                     [](Rank rank) {
                       const Verb verb = rank.rank() == 1 ? Verb::kAllGather : Verb::kAllReduce;
                       return Pieces(rank, verb, DType::kFloat32, 0, [](int, int) { return 16; });
                     }),
            {"rank 1", "all_gather(f32[16])", "all_reduce(f32[16], sum)", "#1"});
  ExpectAll(Statuses(2,
                     [](Rank rank) {
                       const int64_t count = rank.rank() == 1 ? 17 : 16;
                       return Pieces(rank, Verb::kAllReduce, DType::kFloat32, 0, [=](int, int) { return count; });
                     }),
            {"diverge", "f32[16]", "f32[17]"});
}

TEST(DeviceRanks, WhatThePluginDoesNotTakeGoesByWayOfTheHost) {
  std::atomic<int> asked{0};
  ExpectOk(RunRanks(
      2,
      [](Rank rank) {
        for (int i = 0; i < 3; ++i) {
          auto part = std::make_shared<DeviceRanks::Part>();
          part->device = &DeviceOf(rank.rank());
          part->collective = Pieces(rank, Verb::kAllReduce, DType::kFloat32, 0, [](int, int) { return 4; });
          part->collective.by_devices = true;
          const TensorType type{DType::kFloat32, {4}};
          part->sources = part->targets = {{.type = type, .pieces = {4}}};
          part->inputs.push_back({.buffer = *part->device->MakeValue(type, nullptr)});
          const absl::StatusOr<bool> ran = rank.ranks.Run(rank.group, part);
          if (!ran.ok()) return ran.status();
          EXPECT_FALSE(*ran);
        }
        return absl::OkStatus();
      },
      60000,
      [&](const Exchange&) -> absl::StatusOr<Program> {
        ++asked;
        return absl::UnimplementedError("no replicas");
      }));
  EXPECT_EQ(asked, 1);
}

TEST(DeviceRanks, OneThatStallsIsNamedWithinTheTimeout) {
  std::vector<absl::Status> statuses = RunRanks(
      3,
      [](Rank rank) {
        if (rank.rank() == 2) return absl::OkStatus();
        auto part = std::make_shared<DeviceRanks::Part>();
        part->device = &DeviceOf(rank.rank());
        part->collective = Pieces(rank, Verb::kAllReduce, DType::kFloat32, 0, [](int, int) { return 4; });
        part->collective.by_devices = true;
        return rank.ranks.Run(rank.group, part).status();
      },
      2000);
  statuses.pop_back();
  ExpectAll(statuses, {"timeout", "for rank 2 in collective #1 all_reduce(f32[4], sum)"});
}

// A rank that can't take its part once all have agreed: the others wait for it at the next turn.
TEST(DeviceRanks, OneThatFailsOrLeavesHalfwayIsNamedToAll) {
  for (bool leaves : {false, true}) {
    std::vector<absl::Status> statuses = RunRanks(3, [&](Rank rank) {
      auto part = std::make_shared<DeviceRanks::Part>();
      part->device = &DeviceOf(rank.rank());
      part->collective = Pieces(rank, Verb::kGather, DType::kFloat32, 0, [](int, int) { return 4; });
      part->collective.by_devices = true;
      const TensorType type{DType::kFloat32, {4}};
      part->sources = {{type, 0, {4}}};
      if (rank.rank() == 0) part->targets.assign(3, {type, 0, {4}});
      if (rank.rank() != 1) part->inputs.push_back({*part->device->MakeValue(type, nullptr)});
      const absl::Status status = rank.ranks.Run(rank.group, part).status();
      if (rank.rank() == 1) leaves ? rank.group.Leave() : rank.group.Fail(status);
      return status;
    });
    statuses.erase(statuses.begin() + 1);
    ExpectAll(statuses, {"rank 1", leaves ? "has left the group" : "a launch with 0 inputs"});
  }
}

TEST(DeviceRanks, MessagesInOrderAndOfNoElements) {
  ExpectOk(RunRanks(3, [](Rank rank) {
    const int next = (rank.rank() + 1) % rank.size(), last = (rank.rank() + 2) % rank.size();
    for (int64_t count : {3, 0, 1000, 1}) {
      const Bytes mine = Elements(DType::kFloat32, count, rank.rank()), theirs = Elements(DType::kFloat32, count, last);
      const TensorType type{DType::kFloat32, {count}};
      const auto message = [&](Verb verb, int peer) {
        auto part = std::make_shared<DeviceRanks::Part>();
        part->device = &DeviceOf(rank.rank());
        part->collective = {.verb = verb, .dtype = DType::kFloat32, .peer = peer};
        part->collective.by_devices = true;
        (verb == Verb::kSend ? part->collective.inputs : part->collective.outputs) = {{nullptr, count * 4}};
        (verb == Verb::kSend ? part->sources : part->targets) = {{type, 0, {count}}};
        return part;
      };
      const auto sent = message(Verb::kSend, next), received = message(Verb::kRecv, last);
      sent->inputs.push_back({*sent->device->MakeValue(type, mine.data())});
      if (absl::Status s = rank.ranks.Post(rank.rank(), next, sent); !s.ok()) return s;
      if (absl::Status s = rank.group.Run(sent->collective); !s.ok()) return s;
      if (absl::Status s = rank.group.Run(received->collective); !s.ok()) return s;
      if (absl::Status s = rank.ranks.Fetch(last, rank.rank(), received); !s.ok()) return s;
      Bytes got(theirs.size());
      if (absl::Status s = received->device->CopyToHost(received->outputs[0], got.data(), got.size()); !s.ok())
        return s;
      EXPECT_EQ(got, theirs);
    }
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace tpu

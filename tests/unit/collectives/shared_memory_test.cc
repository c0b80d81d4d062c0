// Every verb with ranks as threads of one process: 1 to 9 ranks, no element to ten million, all element types and
// operators, both ways of reducing; and what ranks hear of one that diverges, stalls or leaves.
#include "collectives/shared_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tpu {
namespace {

using Bytes = std::vector<char>;
using RankBody = std::function<absl::Status(Group& group)>;

// Runs `body` as every rank; the statuses by rank.
std::vector<absl::Status> RunRanks(int ranks, const RankBody& body, int timeout_ms = 20000,
                                   Reduction reduction = Reduction::kAuto) {
  std::shared_ptr<Segment> segment = *Segment::Create(ranks);
  std::vector<std::unique_ptr<Group>> groups;
  for (int r = 0; r < ranks; ++r) {
    groups.push_back(MakeSharedMemoryGroup(segment, r, std::chrono::milliseconds(timeout_ms), reduction));
  }
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] { statuses[static_cast<size_t>(r)] = body(*groups[static_cast<size_t>(r)]); });
  }
  for (std::thread& t : threads) t.join();
  return statuses;
}

void ExpectOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& s : statuses) EXPECT_TRUE(s.ok()) << s;
}

template <typename T>
Piece PieceOf(std::vector<T>& v) {
  return {reinterpret_cast<char*>(v.data()), static_cast<int64_t>(v.size() * sizeof(T))};
}

// Small whole numbers: every type holds their sums, products of three values too.
template <typename T>
T Element(int rank, int64_t i) {
  return static_cast<T>((i * 7 + rank * 3) % 3);
}

template <typename T>
std::vector<T> Input(int rank, int64_t count) {
  std::vector<T> v(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) v[static_cast<size_t>(i)] = Element<T>(rank, i);
  return v;
}

template <typename T>
double Reduced(ReduceOp op, int ranks, int64_t i) {
  double result = static_cast<double>(Element<T>(0, i));
  if (op == ReduceOp::kPremulSum) result *= 2;
  for (int r = 1; r < ranks; ++r) {
    const double x = static_cast<double>(Element<T>(r, i));
    const auto a = static_cast<int64_t>(result), b = static_cast<int64_t>(x);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage:
        result += x;
        break;
      case ReduceOp::kPremulSum:
        result += 2 * x;
        break;
      case ReduceOp::kProduct:
        result *= x;
        break;
      case ReduceOp::kMin:
        result = std::min(result, x);
        break;
      case ReduceOp::kMax:
        result = std::max(result, x);
        break;
      case ReduceOp::kBitAnd:
        result = static_cast<double>(a & b);
        break;
      case ReduceOp::kBitOr:
        result = static_cast<double>(a | b);
        break;
      case ReduceOp::kBitXor:
        result = static_cast<double>(a ^ b);
        break;
    }
  }
  return op == ReduceOp::kAverage ? result / ranks : result;
}

constexpr ReduceOp kOps[] = {ReduceOp::kSum,   ReduceOp::kAverage, ReduceOp::kProduct,
                             ReduceOp::kMin,   ReduceOp::kMax,     ReduceOp::kBitAnd,
                             ReduceOp::kBitOr, ReduceOp::kBitXor,  ReduceOp::kPremulSum};

template <typename T>
absl::Status AllReduce(Group& group, DType dtype, ReduceOp op, int64_t count) {
  std::vector<T> in = Input<T>(group.rank(), count), out(in.size());
  Collective c{.verb = Verb::kAllReduce, .dtype = dtype, .op = op, .scale = 2};
  c.inputs = {PieceOf(in)};
  c.outputs = {PieceOf(out)};
  if (absl::Status status = group.Run(c); !status.ok()) return status;
  const bool shared = count > 1'000'000;  // of millions each rank looks at its share
  for (int64_t i = shared ? group.rank() : 0; i < count; i += shared ? group.size() : 1) {
    double expected = Reduced<T>(op, group.size(), i);
    if (IsInteger(dtype)) expected = std::trunc(expected);
    const double got = static_cast<double>(out[static_cast<size_t>(i)]);
    if (std::abs(got - expected) > 1e-2 * std::abs(expected)) {
      return absl::InternalError(c.Describe() + ": element " + std::to_string(i) + " is " + std::to_string(got) +
                                 ", expected " + std::to_string(expected));
    }
  }
  return absl::OkStatus();
}

template <typename T>
void SweepOps(DType dtype, bool bitwise) {
  for (int ranks : {1, 2, 3}) {
    for (Reduction reduction : {Reduction::kDirect, Reduction::kScatterGather}) {
      ExpectOk(RunRanks(
          ranks,
          [&](Group& group) {
            for (ReduceOp op : kOps) {
              const bool is_bitwise = op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
              if (is_bitwise && !bitwise) continue;
              for (int64_t count : {0, 1, 5, 64, 1000}) {
                if (absl::Status s = AllReduce<T>(group, dtype, op, count); !s.ok()) return s;
              }
            }
            return absl::OkStatus();
          },
          20000, reduction));
    }
  }
}

TEST(AllReduce, EveryTypeAndOperator) {
  SweepOps<uint8_t>(DType::kUInt8, true);
  SweepOps<int8_t>(DType::kInt8, true);
  SweepOps<int16_t>(DType::kInt16, true);
  SweepOps<uint16_t>(DType::kUInt16, true);
  SweepOps<int32_t>(DType::kInt32, true);
  SweepOps<uint32_t>(DType::kUInt32, true);
  SweepOps<int64_t>(DType::kInt64, true);
  SweepOps<uint64_t>(DType::kUInt64, true);
  SweepOps<_Float16>(DType::kFloat16, false);
  SweepOps<float>(DType::kFloat32, false);
  SweepOps<double>(DType::kFloat64, false);
}

TEST(AllReduce, EveryNumberOfRanksAndSize) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (Reduction reduction : {Reduction::kDirect, Reduction::kScatterGather}) {
      ExpectOk(RunRanks(
          ranks,
          [](Group& group) {
            for (int64_t count : {0, 1, 2, 9, 127, 4096, 65537, 200001}) {
              if (absl::Status s = AllReduce<float>(group, DType::kFloat32, ReduceOp::kSum, count); !s.ok()) return s;
            }
            return absl::OkStatus();
          },
          60000, reduction));
    }
  }
}

TEST(AllReduce, TenMillionElements) {
  for (int ranks : {4, 9}) {
    ExpectOk(RunRanks(
        ranks, [](Group& g) { return AllReduce<int8_t>(g, DType::kInt8, ReduceOp::kMax, 10'000'001); }, 120000));
  }
  ExpectOk(
      RunRanks(3, [](Group& g) { return AllReduce<int8_t>(g, DType::kInt8, ReduceOp::kSum, 10'000'001); }, 120000));
  ExpectOk(
      RunRanks(2, [](Group& g) { return AllReduce<float>(g, DType::kFloat32, ReduceOp::kMax, 10'000'001); }, 120000));
}

TEST(AllReduce, InPlace) {
  for (Reduction reduction : {Reduction::kDirect, Reduction::kScatterGather}) {
    ExpectOk(RunRanks(
        4,
        [](Group& group) {
          std::vector<int> v(100'000, group.rank());
          Collective c{.verb = Verb::kAllReduce, .dtype = DType::kInt32};
          c.inputs = c.outputs = {PieceOf(v)};
          absl::Status status = group.Run(c);
          EXPECT_EQ(v, std::vector<int>(100'000, 6));
          return status;
        },
        20000, reduction));
  }
}

TEST(AllReduce, NotANumberWins) {
  ExpectOk(RunRanks(2, [](Group& group) {
    for (int with_nan : {0, 1}) {
      std::vector<float> v(3, group.rank() == with_nan ? NAN : 1.0f);
      Collective c{.verb = Verb::kAllReduce, .dtype = DType::kFloat32, .op = ReduceOp::kMax};
      c.inputs = c.outputs = {PieceOf(v)};
      if (absl::Status s = group.Run(c); !s.ok()) return s;
      EXPECT_TRUE(std::isnan(v[0]) && std::isnan(v[2]));
    }
    return absl::OkStatus();
  }));
}

// What every rank holds after each verb that only moves bytes.
absl::Status Moves(Group& group, int64_t count) {
  const int ranks = group.size(), rank = group.rank();
  const auto all = [&] { return std::vector<std::vector<int>>(static_cast<size_t>(ranks)); };
  const auto pieces = [](std::vector<std::vector<int>>& v) {
    std::vector<Piece> p;
    for (auto& x : v) p.push_back(PieceOf(x));
    return p;
  };
  for (int root = 0; root < ranks; root += 2) {
    std::vector<int> mine(static_cast<size_t>(count), rank + 1), expected(static_cast<size_t>(count), root + 1);
    Collective c{.verb = Verb::kBroadcast, .dtype = DType::kInt32, .peer = root};
    (rank == root ? c.inputs : c.outputs) = {PieceOf(mine)};
    if (absl::Status s = group.Run(c); !s.ok()) return s;
    EXPECT_EQ(mine, expected);

    auto gathered = all(), to_scatter = all();
    for (int r = 0; r < ranks; ++r) {
      gathered[r].assign(static_cast<size_t>(count), -1);
      to_scatter[r].assign(static_cast<size_t>(count), 10 * r + root);
    }
    mine.assign(mine.size(), rank);
    c = {.verb = Verb::kGather, .dtype = DType::kInt32, .peer = root};
    c.inputs = {PieceOf(mine)};
    if (rank == root) c.outputs = pieces(gathered);
    if (absl::Status s = group.Run(c); !s.ok()) return s;
    for (int r = 0; r < ranks && rank == root; ++r) EXPECT_EQ(gathered[r], std::vector<int>(mine.size(), r));

    c = {.verb = Verb::kScatter, .dtype = DType::kInt32, .peer = root};
    if (rank == root) c.inputs = pieces(to_scatter);
    c.outputs = {PieceOf(mine)};
    if (absl::Status s = group.Run(c); !s.ok()) return s;
    EXPECT_EQ(mine, std::vector<int>(mine.size(), 10 * rank + root));

    std::vector<int> ones(static_cast<size_t>(count), 1), sum(ones);
    c = {.verb = Verb::kReduce, .dtype = DType::kInt32, .peer = root};
    c.inputs = {PieceOf(ones)};
    if (rank == root) c.outputs = {PieceOf(sum)};
    if (absl::Status s = group.Run(c); !s.ok()) return s;
    if (rank == root) {
      EXPECT_EQ(sum, std::vector<int>(sum.size(), ranks));
    }
  }
  // Uneven pieces: rank r has count + r elements; to rank s it sends count + r + s.
  auto gathered = all(), sent = all(), received = all(), parts = all();
  for (int r = 0; r < ranks; ++r) {
    gathered[r].assign(static_cast<size_t>(count + r), -1);
    sent[r].assign(static_cast<size_t>(count + rank + r), 100 * rank + r);
    received[r].assign(static_cast<size_t>(count + rank + r), -1);
    parts[r].assign(static_cast<size_t>(count + r), r);
  }
  std::vector<int> mine(static_cast<size_t>(count + rank), rank), sum(mine);
  Collective c{.verb = Verb::kAllGather, .dtype = DType::kInt32};
  c.inputs = {PieceOf(mine)};
  c.outputs = pieces(gathered);
  if (absl::Status s = group.Run(c); !s.ok()) return s;
  c = {.verb = Verb::kAllToAll, .dtype = DType::kInt32};
  c.inputs = pieces(sent);
  c.outputs = pieces(received);
  if (absl::Status s = group.Run(c); !s.ok()) return s;
  for (int r = 0; r < ranks; ++r) {
    EXPECT_EQ(gathered[r], std::vector<int>(gathered[r].size(), r));
    EXPECT_EQ(received[r], std::vector<int>(received[r].size(), 100 * r + rank));
  }
  c = {.verb = Verb::kReduceScatter, .dtype = DType::kInt32};
  c.inputs = pieces(parts);
  c.outputs = {PieceOf(sum)};
  if (absl::Status s = group.Run(c); !s.ok()) return s;
  EXPECT_EQ(sum, std::vector<int>(sum.size(), rank * ranks));
  return group.Run({.verb = Verb::kBarrier});
}

TEST(Moves, EveryVerbRanksAndSize) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    ExpectOk(RunRanks(
        ranks,
        [](Group& group) {
          for (int64_t count : {0, 1, 100, 70'000}) {
            if (absl::Status s = Moves(group, count); !s.ok()) return s;
          }
          return absl::OkStatus();
        },
        60000));
  }
}

TEST(Messages, InBothDirectionsAtOnce) {
  ExpectOk(RunRanks(2, [](Group& group) {
    for (int64_t count : {0, 1, 1000, 100'000}) {
      std::vector<int> out(static_cast<size_t>(count), group.rank()), in(out);
      Collective send{.verb = Verb::kSend, .dtype = DType::kInt32, .peer = 1 - group.rank(), .tag = 3};
      Collective receive{.verb = Verb::kRecv, .dtype = DType::kInt32, .peer = 1 - group.rank(), .tag = 3};
      send.inputs = {PieceOf(out)};
      receive.outputs = {PieceOf(in)};
      absl::Status sent;
      std::thread sender([&] { sent = group.Run(send); });
      const absl::Status received = group.Run(receive);
      sender.join();
      if (!sent.ok()) return sent;
      if (!received.ok()) return received;
      EXPECT_EQ(in, std::vector<int>(in.size(), 1 - group.rank()));
    }
    return absl::OkStatus();
  }));
}

TEST(Messages, FromAnyRank) {
  ExpectOk(RunRanks(4, [](Group& group) {
    if (group.rank() != 0) {
      std::vector<int> mine(40'000, group.rank());
      Collective send{.verb = Verb::kSend, .dtype = DType::kInt32, .peer = 0};
      send.inputs = {PieceOf(mine)};
      for (int tag : {group.rank() == 3 ? 5 : 4, 6}) {
        send.tag = tag;
        if (absl::Status s = group.Run(send); !s.ok()) return s;
      }
      return absl::OkStatus();
    }
    // Rank 3's first message has another tag; rank 2's are left to somebody else at first.
    for (const auto& [tag, sources] : std::vector<std::pair<int, std::vector<int>>>{
             {4, {1}}, {4, {2}}, {5, {3}}, {6, {1, 2, 3}}, {6, {1, 2, 3}}, {6, {1, 2, 3}}}) {
      std::vector<int> in(40'000);
      Collective receive{.verb = Verb::kRecv, .dtype = DType::kInt32, .peer = kAnyRank, .tag = tag};
      receive.outputs = {PieceOf(in)};
      const absl::StatusOr<int> source =
          group.ReceiveAny(receive, [&](int rank) { return rank != 2 || sources.front() != 1 || sources.size() > 1; });
      if (!source.ok()) return source.status();
      EXPECT_NE(std::find(sources.begin(), sources.end(), *source), sources.end()) << *source;
      EXPECT_EQ(in, std::vector<int>(in.size(), *source));
    }
    return absl::OkStatus();
  }));
}

// Where devices move the elements the group announces, compares and lets all ranks wait for each other.
TEST(Turns, NobodyGoesOnBeforeAllHaveComeAsFar) {
  for (int ranks : {1, 2, 5}) {
    std::atomic<int> come[3] = {0, 0, 0};
    ExpectOk(RunRanks(ranks, [&](Group& group) {
      for (int i = 0; i < 50; ++i) {
        Collective c{.verb = Verb::kAllReduce, .dtype = DType::kFloat32, .by_devices = true};
        c.inputs = c.outputs = {{nullptr, 1 << 20}};
        ++come[0];
        if (absl::Status s = group.Run(c); !s.ok()) return s;
        EXPECT_GE(come[0], ranks * (i + 1));
        for (int turn : {1, 2}) {
          ++come[turn];
          if (absl::Status s = group.Turn(); !s.ok()) return s;
          EXPECT_GE(come[turn], ranks * (i + 1));
        }
      }
      return absl::OkStatus();
    }));
  }
}

void ExpectAll(const std::vector<absl::Status>& statuses, const std::vector<std::string>& words) {
  for (const absl::Status& s : statuses) {
    EXPECT_FALSE(s.ok());
    for (const std::string& w : words) EXPECT_NE(std::string(s.message()).find(w), std::string::npos) << s;
  }
}

TEST(Trust, AnotherCollective) {
  ExpectAll(RunRanks(3,
                     [](Group& group) {
                       std::vector<float> v(16);
                       Collective c{.verb = group.rank() == 1 ? Verb::kBroadcast : Verb::kAllReduce,
                                    .dtype = DType::kFloat32};
                       if (group.rank() != 1) c.inputs = {PieceOf(v)};
                       c.outputs = {PieceOf(v)};
                       return group.Run(c);
                     }),
            {"rank 1", "broadcast(f32[16], root 0)", "all_reduce(f32[16], sum)", "#1"});
}

TEST(Trust, AnotherShapeTypeOrOperator) {
  for (int difference = 0; difference < 3; ++difference) {
    ExpectAll(RunRanks(2,
                       [&](Group& group) {
                         const bool other = group.rank() == 1;
                         std::vector<float> v(other && difference == 0 ? 17 : 16);
                         Collective c{.verb = Verb::kAllReduce,
                                      .dtype = other && difference == 1 ? DType::kInt32 : DType::kFloat32,
                                      .op = other && difference == 2 ? ReduceOp::kMax : ReduceOp::kSum};
                         c.inputs = c.outputs = {PieceOf(v)};
                         return group.Run(c);
                       }),
              {"diverge", "rank 0", "rank 1", "all_reduce"});
  }
}

TEST(Trust, StalledRankIsNamedWithinTheTimeout) {
  std::vector<absl::Status> statuses = RunRanks(
      3, [](Group& group) { return group.rank() == 2 ? absl::OkStatus() : group.Run({.verb = Verb::kBarrier}); }, 1000);
  statuses.pop_back();
  ExpectAll(statuses, {"timeout", "for rank 2 in collective #1 barrier"});
}

TEST(Trust, ReceivingFromAnyRankEndsWhenAllHaveLeft) {
  const auto receive = [](Group& group) {
    std::vector<int> in(4);
    Collective c{.verb = Verb::kRecv, .dtype = DType::kInt32, .peer = kAnyRank};
    c.outputs = {PieceOf(in)};
    return group.ReceiveAny(c, [](int) { return true; }).status();
  };
  const std::vector<absl::Status> left = RunRanks(3, [&](Group& group) {
    if (group.rank() == 0) return receive(group);
    group.Leave();
    return absl::OkStatus();
  });
  ExpectAll({left[0]}, {"every other rank has left", "recv(i32[4], from any rank, tag 0)"});
  const std::vector<absl::Status> silent =
      RunRanks(2, [&](Group& group) { return group.rank() == 0 ? receive(group) : absl::OkStatus(); }, 100);
  ExpectAll({silent[0]}, {"timeout", "from any rank"});
}

TEST(Trust, RankThatLeftIsNamed) {
  std::vector<absl::Status> statuses = RunRanks(2, [](Group& group) {
    if (group.rank() == 0) return group.Run({.verb = Verb::kBarrier});
    group.Leave();
    return absl::OkStatus();
  });
  statuses.pop_back();
  ExpectAll(statuses, {"rank 1 has left the group", "barrier"});
}

TEST(Trust, FailureIsEverybodysAndLasts) {
  ExpectAll(RunRanks(2,
                     [](Group& group) {
                       if (group.rank() == 1) group.Fail(absl::ResourceExhaustedError("no memory for the result"));
                       static_cast<void>(group.Run({.verb = Verb::kBarrier}));
                       return group.Run({.verb = Verb::kBarrier});
                     }),
            {"rank 1: no memory for the result"});
}

TEST(Trust, WrongArgumentsAreRefusedAtTheCall) {
  ExpectAll(RunRanks(2,
                     [](Group& group) {
                       std::vector<float> v(4);
                       Collective c{.verb = Verb::kAllReduce, .dtype = DType::kFloat32, .op = ReduceOp::kBitAnd};
                       c.inputs = c.outputs = {PieceOf(v)};
                       return group.Run(c);
                     }),
            {"band is not defined for elements of f32"});
}

TEST(Trust, RankKilledWhileItWroteTheFailureHoldsUpNobody) {
  std::shared_ptr<Segment> segment = *Segment::Create(2);
  const std::unique_ptr<Group> group = MakeSharedMemoryGroup(segment, 0, std::chrono::milliseconds(200));
  std::fstream(segment->Address(), std::ios::in | std::ios::out | std::ios::binary).put(1);  // being written
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = group->Run({.verb = Verb::kBarrier});
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_NE(status.message().find("timeout"), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace tpu

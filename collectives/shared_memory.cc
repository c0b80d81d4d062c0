#include "collectives/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "collectives/reduce.h"
#include "collectives/return_if_error.h"
#include "collectives/rounds.h"

namespace tpu {
namespace {

// Up to here a wait costs more than reading every rank's elements.
constexpr int64_t kSmall = 16 << 10;
constexpr int64_t kLine = 64;  // parts begin at cache lines

void Copy(char* to, const char* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// The part of a piece that goes in a round.
struct Part {
  int64_t begin = 0, bytes = 0;
};
Part PartOf(const Piece& piece, int64_t round, int64_t most) {
  const int64_t begin = std::min(round * most, piece.bytes);
  return {begin, std::min(most, piece.bytes - begin)};
}

int64_t RoundsFor(int64_t bytes, int64_t most) { return std::max<int64_t>(1, (bytes + most - 1) / most); }

uint64_t Mix(uint64_t h, uint64_t x) {
  const __uint128_t p = static_cast<__uint128_t>(h ^ x) * 0x9E3779B97F4A7C15ull;
  return static_cast<uint64_t>(p) ^ static_cast<uint64_t>(p >> 64);
}

// What sizes all ranks must have in common: of the pieces that every rank has.
uint64_t ShapeOf(const Collective& c) {
  if (c.verb == Verb::kAllToAll) return 0;  // compared pair by pair
  const bool by_outputs = c.verb == Verb::kAllGather || c.verb == Verb::kScatter || c.inputs.empty();
  uint64_t h = 1;
  for (const Piece& p : by_outputs ? c.outputs : c.inputs) h = Mix(h, static_cast<uint64_t>(p.bytes));
  return h;
}

class SharedMemoryGroup final : public Group {
 public:
  SharedMemoryGroup(std::shared_ptr<Segment> segment, int rank, std::chrono::milliseconds timeout, Reduction reduction)
      : Group(rank, segment->ranks(), timeout),
        segment_(std::move(segment)),
        rounds_(segment_, rank, timeout),
        reduction_(reduction),
        chunks_sent_(size()),
        chunks_taken_(size()) {}

  absl::Status Run(const Collective& c) override {
    RETURN_IF_ERROR(Check(c, rank(), size()));
    RETURN_IF_ERROR(rounds_.Sound());
    if (c.verb == Verb::kSend) return Send(c);
    if (c.verb == Verb::kRecv) return Receive(c);
    rounds_.Open(c, ShapeOf(c));
    if (c.by_devices) return Agree(c);
    switch (c.verb) {
      case Verb::kBroadcast:
        return Broadcast(c);
      case Verb::kGather:
      case Verb::kAllGather:
        return Gather(c);
      case Verb::kScatter:
      case Verb::kAllToAll:
      case Verb::kReduceScatter:
        return Exchange(c);
      case Verb::kAllReduce:
      case Verb::kReduce:
        return Direct(c) ? ReduceDirectly(c) : ReduceByParts(c);
      default:
        return Agree(c);
    }
  }

  absl::Status Turn() override {
    RETURN_IF_ERROR(rounds_.Publish([](char*) {}));
    for (int r = 0; r < size(); ++r) RETURN_IF_ERROR(rounds_.Await(r));
    rounds_.Finish();
    return absl::OkStatus();
  }

  absl::StatusOr<int> ReceiveAny(const Collective& c, absl::FunctionRef<bool(int)> may) override {
    RETURN_IF_ERROR(Check(c, rank(), size()));
    RETURN_IF_ERROR(rounds_.Sound());
    int source = kAnyRank;
    const auto there = [&] {
      for (int r = 0; r < size(); ++r) {
        if (r != rank() && may(r) && HasLetter(r, c.tag)) source = r;
      }
      return source != kAnyRank;
    };
    RETURN_IF_ERROR(rounds_.WaitForAny(there, [&] { return c.Describe(); }));
    Collective from = c;
    from.peer = source;
    RETURN_IF_ERROR(Receive(from));
    return source;
  }

  void Fail(const absl::Status& reason) override {
    static_cast<void>(rounds_.Fail(absl::StrCat("rank ", rank(), ": ", std::string(reason.message()))));
  }
  void Leave() override { rounds_.Leave(); }
  void SetTimeout(std::chrono::milliseconds timeout) override {
    Group::SetTimeout(timeout);
    rounds_.SetTimeout(timeout);
  }

 private:
  absl::Status Agree(const Collective& c) {
    RETURN_IF_ERROR(rounds_.Publish([](char*) {}));
    if (c.verb == Verb::kAllToAll) RETURN_IF_ERROR(ComparePieces(c));
    rounds_.Finish();
    return absl::OkStatus();
  }

  absl::Status Broadcast(const Collective& c) {
    const bool root = c.peer == rank();
    const Piece& piece = root ? c.inputs[0] : c.outputs[0];
    for (int64_t i = 0, n = RoundsFor(piece.bytes, segment_->slot_bytes()); i < n; ++i) {
      const Part part = PartOf(piece, i, segment_->slot_bytes());
      RETURN_IF_ERROR(rounds_.Publish([&](char* slot) {
        if (root) Copy(slot, piece.data + part.begin, part.bytes);
      }));
      if (!root) {
        RETURN_IF_ERROR(rounds_.Await(c.peer));
        Copy(piece.data + part.begin, rounds_.SlotOf(c.peer), part.bytes);
      }
      rounds_.Finish();
    }
    return absl::OkStatus();
  }

  // gather and all_gather: everybody's piece, to the root or to all.
  absl::Status Gather(const Collective& c) {
    const Piece& mine = c.inputs[0];
    const bool reads = !c.outputs.empty();
    int64_t largest = mine.bytes;
    if (c.verb == Verb::kAllGather) {
      for (const Piece& p : c.outputs) largest = std::max(largest, p.bytes);
    }
    for (int64_t i = 0, n = RoundsFor(largest, segment_->slot_bytes()); i < n; ++i) {
      const Part part = PartOf(mine, i, segment_->slot_bytes());
      const bool published = c.verb == Verb::kAllGather || !reads;
      RETURN_IF_ERROR(rounds_.Publish([&](char* slot) {
        if (published) Copy(slot, mine.data + part.begin, part.bytes);
      }));
      for (int step = 0; reads && step < size(); ++step) {
        const int r = (rank() + step) % size();  // not everybody from the same slot at once
        const Part theirs = PartOf(c.outputs[r], i, segment_->slot_bytes());
        if (r == rank()) {
          Copy(c.outputs[r].data + part.begin, mine.data + part.begin, part.bytes);
          continue;
        }
        RETURN_IF_ERROR(rounds_.Await(r));
        Copy(c.outputs[r].data + theirs.begin, rounds_.SlotOf(r), theirs.bytes);
      }
      rounds_.Finish();
    }
    return absl::OkStatus();
  }

  // scatter, all_to_all and reduce_scatter: a slot holds a part for every rank.
  absl::Status Exchange(const Collective& c) {
    const int64_t most = segment_->slot_bytes() / size() / kLine * kLine;
    const bool reduces = c.verb == Verb::kReduceScatter;
    int64_t rounds = 1;
    for (int64_t i = 0; i < rounds; ++i) {
      RETURN_IF_ERROR(rounds_.Publish([&](char* slot) {
        for (int r = 0; r < static_cast<int>(c.inputs.size()); ++r) {
          const Part part = PartOf(c.inputs[r], i, most);
          if (r != rank()) Copy(slot + r * most, c.inputs[r].data + part.begin, part.bytes);
        }
      }));
      if (i == 0) {
        int64_t largest = 0;
        for (int r = 0; r < size(); ++r) largest = std::max(largest, rounds_.AnnouncedBy(r).largest);
        rounds = RoundsFor(largest, most);
        if (c.verb == Verb::kAllToAll) RETURN_IF_ERROR(ComparePieces(c));
      }
      RETURN_IF_ERROR(reduces ? ReducePart(c, i, most) : CopyParts(c, i, most));
      rounds_.Finish();
    }
    return absl::OkStatus();
  }

  // What this rank sends and gets against what the others expect and send.
  absl::Status ComparePieces(const Collective& c) {
    const int64_t element = static_cast<int64_t>(SizeOf(c.dtype));
    const auto compare = [&](int from, int to) {
      const int64_t sent = rounds_.SentBy(from, to), expected = rounds_.ExpectedBy(to, from);
      if (sent == expected) return absl::OkStatus();
      return rounds_.Fail(absl::StrCat("ranks diverge: in all_to_all rank ", from, " sends ", sent / element,
                                       " elements to rank ", to, ", which expects ", expected / element));
    };
    for (int r = 0; r < size(); ++r) {
      RETURN_IF_ERROR(compare(r, rank()));
      RETURN_IF_ERROR(compare(rank(), r));
    }
    return absl::OkStatus();
  }

  absl::Status CopyParts(const Collective& c, int64_t round, int64_t most) {
    for (int step = 0; step < size(); ++step) {
      const int r = (rank() + step) % size();
      if (c.verb == Verb::kScatter && r != c.peer) continue;
      const Piece& to = c.outputs[c.verb == Verb::kScatter ? 0 : r];
      const Part part = PartOf(to, round, most);
      if (r == rank()) {
        Copy(to.data + part.begin, c.inputs[r].data + part.begin, part.bytes);
        continue;
      }
      RETURN_IF_ERROR(rounds_.Await(r));
      Copy(to.data + part.begin, rounds_.SlotOf(r) + rank() * most, part.bytes);
    }
    return absl::OkStatus();
  }

  absl::Status ReducePart(const Collective& c, int64_t round, int64_t most) {
    const Part part = PartOf(c.outputs[0], round, most);
    Sources sources(size());
    for (int r = 0; r < size(); ++r) {
      RETURN_IF_ERROR(rounds_.Await(r));
      sources[r] = r == rank() ? c.inputs[r].data + part.begin : rounds_.SlotOf(r) + rank() * most;
    }
    CombineParts(c, sources, part.bytes, c.outputs[0].data + part.begin);
    return absl::OkStatus();
  }

  bool Direct(const Collective& c) const {
    if (reduction_ != Reduction::kAuto) return reduction_ == Reduction::kDirect;
    return c.inputs[0].bytes <= kSmall || size() <= 2;
  }

  // Everybody (or the root) reads all elements of all ranks.
  absl::Status ReduceDirectly(const Collective& c) {
    const Piece& mine = c.inputs[0];
    const bool reads = !c.outputs.empty();
    for (int64_t i = 0, n = RoundsFor(mine.bytes, segment_->slot_bytes()); i < n; ++i) {
      const Part part = PartOf(mine, i, segment_->slot_bytes());
      const bool published = c.verb == Verb::kAllReduce || !reads;
      RETURN_IF_ERROR(rounds_.Publish([&](char* slot) {
        if (published) Copy(slot, mine.data + part.begin, part.bytes);
      }));
      if (reads) {
        Sources sources(size());
        for (int r = 0; r < size(); ++r) {
          RETURN_IF_ERROR(rounds_.Await(r));
          sources[r] = r == rank() ? mine.data + part.begin : rounds_.SlotOf(r);
        }
        CombineParts(c, sources, part.bytes, c.outputs[0].data + part.begin);
      }
      rounds_.Finish();
    }
    return absl::OkStatus();
  }

  // Each rank reduces one part of the chunk that is in the slots, and publishes it beside the next chunk; then the
  // parts are put together.
  absl::Status ReduceByParts(const Collective& c) {
    const Piece& mine = c.inputs[0];
    const bool reads = !c.outputs.empty();
    const int64_t most = (segment_->slot_bytes() / (size() + 1) / kLine - 1) * kLine;  // of a part
    const int64_t chunk = most * size();
    const int64_t chunks = RoundsFor(mine.bytes, chunk);
    std::vector<char> scratch(reads ? 0 : static_cast<size_t>(most));
    const auto part_of = [&](int64_t i, int r) {
      const Part whole = PartOf(mine, i, chunk);
      const int64_t each = std::min(most, (whole.bytes / size() / kLine + 1) * kLine);
      const Part part = PartOf({nullptr, whole.bytes}, r, each);
      return Part{whole.begin + part.begin, part.bytes};
    };
    for (int64_t i = 0; i <= chunks; ++i) {
      const Part whole = PartOf(mine, i, chunk);  // of no bytes after the last chunk
      const Part own = part_of(i, rank()), reduced = part_of(i - 1, rank());
      RETURN_IF_ERROR(rounds_.Publish([&](char* slot) {
        const int64_t end = own.begin + own.bytes;  // the own part is read where it is
        Copy(slot, mine.data + whole.begin, own.begin - whole.begin);
        Copy(slot + (end - whole.begin), mine.data + end, whole.begin + whole.bytes - end);
        if (i > 0) Copy(slot + chunk, reads ? c.outputs[0].data + reduced.begin : scratch.data(), reduced.bytes);
      }));
      Sources sources(size());
      for (int r = 0; r < size(); ++r) {
        RETURN_IF_ERROR(rounds_.Await(r));
        sources[r] = r == rank() ? mine.data + own.begin : rounds_.SlotOf(r) + (own.begin - whole.begin);
      }
      CombineParts(c, sources, own.bytes, reads ? c.outputs[0].data + own.begin : scratch.data());
      for (int step = 1; i > 0 && reads && step < size(); ++step) {
        const int r = (rank() + step) % size();
        const Part part = part_of(i - 1, r);
        Copy(c.outputs[0].data + part.begin, rounds_.SlotOf(r) + chunk, part.bytes);
      }
      rounds_.Finish();
    }
    return absl::OkStatus();
  }

  using Sources = absl::InlinedVector<const char*, 8>;

  void CombineParts(const Collective& c, const Sources& sources, int64_t bytes, char* out) {
    absl::InlinedVector<double, 8> scales;
    for (int r = 0; c.op == ReduceOp::kPremulSum && r < size(); ++r) scales.push_back(rounds_.AnnouncedBy(r).scale);
    Combine(c.dtype, c.op, sources, scales, bytes / static_cast<int64_t>(SizeOf(c.dtype)), out);
  }

  static int64_t ChunksOf(const Collective& c, const Piece& message) {
    return c.by_devices ? 1 : RoundsFor(message.bytes, Segment::kMailBytes);
  }

  absl::Status Send(const Collective& c) {
    Mailbox& box = segment_->mailbox(rank(), c.peer);
    uint64_t& chunk = chunks_sent_[c.peer];
    const Piece& piece = c.inputs[0];
    for (int64_t i = 0, n = ChunksOf(c, piece); i < n; ++i, ++chunk) {
      const auto room = [&] { return box.taken.load(std::memory_order_acquire) + 2 > chunk; };
      if (!room()) RETURN_IF_ERROR(rounds_.WaitFor(c.peer, room, [&] { return c.Describe(); }));
      const Part part = PartOf(piece, i, Segment::kMailBytes);
      if (!c.by_devices) Copy(segment_->mail(rank(), c.peer, chunk), piece.data + part.begin, part.bytes);
      if (i == 0) box.letters[chunk % 2] = {piece.bytes, c.tag, static_cast<uint8_t>(c.dtype)};
      box.sent.store(chunk + 1, std::memory_order_seq_cst);
      rounds_.Changed();
    }
    return absl::OkStatus();
  }

  // Whether the next message of rank `from` is there, and has this tag.
  bool HasLetter(int from, int tag) const {
    const Mailbox& box = segment_->mailbox(from, rank());
    const uint64_t chunk = chunks_taken_[from];
    return box.sent.load(std::memory_order_acquire) > chunk && box.letters[chunk % 2].tag == tag;
  }

  absl::Status Receive(const Collective& c) {
    Mailbox& box = segment_->mailbox(c.peer, rank());
    uint64_t& chunk = chunks_taken_[c.peer];
    const Piece& piece = c.outputs[0];
    for (int64_t i = 0, n = ChunksOf(c, piece); i < n; ++i, ++chunk) {
      const auto there = [&] { return box.sent.load(std::memory_order_acquire) > chunk; };
      if (!there()) RETURN_IF_ERROR(rounds_.WaitFor(c.peer, there, [&] { return c.Describe(); }));
      const Mailbox::Letter& letter = box.letters[chunk % 2];
      if (i == 0 &&
          (letter.bytes != piece.bytes || letter.tag != c.tag || letter.dtype != static_cast<uint8_t>(c.dtype))) {
        const DType sent = static_cast<DType>(letter.dtype);
        return rounds_.Fail(absl::StrCat("ranks diverge: rank ", c.peer, " sends ", std::string(NameOf(sent)), "[",
                                         letter.bytes / static_cast<int64_t>(SizeOf(sent)), "], tag ", letter.tag,
                                         ", while rank ", rank(), " is at ", c.Describe()));
      }
      const Part part = PartOf(piece, i, Segment::kMailBytes);
      if (!c.by_devices) Copy(piece.data + part.begin, segment_->mail(c.peer, rank(), chunk), part.bytes);
      box.taken.store(chunk + 1, std::memory_order_seq_cst);
      rounds_.Changed();
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<Segment> segment_;
  Rounds rounds_;
  const Reduction reduction_;
  std::vector<uint64_t> chunks_sent_, chunks_taken_;  // by peer; each entry is one thread's at a time
};

}  // namespace

std::unique_ptr<Group> MakeSharedMemoryGroup(std::shared_ptr<Segment> segment, int rank,
                                             std::chrono::milliseconds timeout, Reduction reduction) {
  return std::make_unique<SharedMemoryGroup>(std::move(segment), rank, timeout, reduction);
}

}  // namespace tpu

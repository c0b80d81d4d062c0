#include "collectives/c10d/gloo.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/reduce.h"
#include "dispatcher/errors.h"

namespace tpu {
namespace {

// Everything goes over the wire as bytes; reductions gather and combine here, so that every operator and type means
// what it means inside a host. What a rank says first, in one message:
struct Word {
  char text[160];  // the collective, for comparison and for people
  double scale;
  int64_t largest;
};

at::Tensor Bytes(const Piece& p) { return at::from_blob(p.data, {p.bytes}, at::TensorOptions(c10::ScalarType::Byte)); }

std::vector<at::Tensor> Bytes(const std::vector<Piece>& pieces) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(pieces.size());
  for (const Piece& p : pieces) tensors.push_back(Bytes(p));
  return tensors;
}

class GlooGroup final : public Group {
 public:
  GlooGroup(c10::intrusive_ptr<c10d::Backend> gloo, std::chrono::milliseconds timeout)
      : Group(gloo->getRank(), gloo->getSize(), timeout), gloo_(std::move(gloo)) {}

  absl::Status Run(const Collective& c) override {
    if (absl::Status status = Check(c, rank(), size()); !status.ok()) return status;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_.ok()) return failure_;
    }
    try {
      if (c.verb == Verb::kSend || c.verb == Verb::kRecv) {
        Message(c);
        return absl::OkStatus();
      }
      ++sequence_;
      std::vector<Word> words;
      absl::Status status = Agree(c, words);
      if (status.ok()) Do(c, words);
      if (!status.ok()) Fail(status);
      return status;
    } catch (...) {
      const absl::Status error = StatusOfCurrentException();
      Fail(absl::Status(error.code(), absl::StrCat("in collective #", sequence_, " ", c.Describe(), ": ",
                                                   std::string(error.message()))));
      std::lock_guard<std::mutex> lock(mutex_);
      return failure_;
    }
  }

  // Gloo gives each message to the receive that was posted first: `may` is its to see to.
  absl::StatusOr<int> ReceiveAny(const Collective& c, absl::FunctionRef<bool(int)>) override {
    if (absl::Status status = Check(c, rank(), size()); !status.ok()) return status;
    try {
      return Message(c)->sourceRank();
    } catch (...) {
      const absl::Status error = StatusOfCurrentException();
      Fail(absl::Status(error.code(), absl::StrCat("in ", c.Describe(), ": ", std::string(error.message()))));
      std::lock_guard<std::mutex> lock(mutex_);
      return failure_;
    }
  }

  void Fail(const absl::Status& reason) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_.ok()) return;
      failure_ = reason;
    }
    gloo_->abort();
  }
  void Leave() override { Fail(absl::AbortedError(absl::StrCat("rank ", rank(), " has left the group"))); }
  void SetTimeout(std::chrono::milliseconds timeout) override {
    Group::SetTimeout(timeout);
    gloo_->setTimeout(timeout);
  }

 private:
  // Everybody's word; the error of those that differ.
  absl::Status Agree(const Collective& c, std::vector<Word>& words) {
    Word mine{};
    int64_t agreed = 0;  // bytes that must be equal on all ranks
    const bool by_outputs = c.verb == Verb::kAllGather || c.verb == Verb::kScatter || c.inputs.empty();
    for (const Piece& p : by_outputs ? c.outputs : c.inputs) agreed += p.bytes;
    if (c.verb == Verb::kAllToAll) agreed = 0;
    const std::string text =
        absl::StrCat("collective #", sequence_, " ", NameOf(c.verb), "(", std::string(NameOf(c.dtype)), "[",
                     agreed / static_cast<int64_t>(SizeOf(c.dtype)), "]", Reduces(c.verb) ? ", " : "",
                     Reduces(c.verb) ? NameOf(c.op) : "", c.peer != 0 ? absl::StrCat(", root ", c.peer) : "", ")");
    std::strncpy(mine.text, text.c_str(), sizeof mine.text - 1);
    mine.scale = c.scale;
    for (const auto* pieces : {&c.inputs, &c.outputs}) {
      for (const Piece& p : *pieces) mine.largest = std::max(mine.largest, p.bytes);
    }
    words.resize(static_cast<size_t>(size()));
    const int64_t bytes = sizeof(Word);
    at::Tensor in = Bytes(Piece{reinterpret_cast<char*>(&mine), bytes});
    at::Tensor out = Bytes(Piece{reinterpret_cast<char*>(words.data()), bytes * size()});
    gloo_->_allgather_base(out, in)->wait();
    for (int r = 0; r < size(); ++r) {
      if (std::strncmp(words[static_cast<size_t>(r)].text, mine.text, sizeof mine.text) == 0) continue;
      return absl::AbortedError(absl::StrCat("ranks diverge: rank ", r, " is at ", words[static_cast<size_t>(r)].text,
                                             " while rank ", rank(), " is at ", mine.text));
    }
    return absl::OkStatus();
  }

  void Do(const Collective& c, const std::vector<Word>& words) {
    switch (c.verb) {
      case Verb::kBroadcast: {
        c10d::BroadcastOptions options;
        options.rootRank = c.peer;
        std::vector<at::Tensor> t = Bytes(c.inputs.empty() ? c.outputs : c.inputs);
        gloo_->broadcast(t, options)->wait();
        return;
      }
      case Verb::kAllGather:
        return AllGather(c.inputs[0], c.outputs);
      case Verb::kGather: {
        c10d::GatherOptions options;
        options.rootRank = c.peer;
        std::vector<at::Tensor> in = Bytes(c.inputs);
        std::vector<std::vector<at::Tensor>> out;
        if (!c.outputs.empty()) out.push_back(Bytes(c.outputs));
        gloo_->gather(out, in, options)->wait();
        return;
      }
      case Verb::kScatter: {
        c10d::ScatterOptions options;
        options.rootRank = c.peer;
        std::vector<at::Tensor> out = Bytes(c.outputs);
        std::vector<std::vector<at::Tensor>> in;
        if (!c.inputs.empty()) in.push_back(Bytes(c.inputs));
        gloo_->scatter(out, in, options)->wait();
        return;
      }
      case Verb::kAllToAll:
        return AllToAll(c.inputs, c.outputs);
      case Verb::kReduceScatter:
        return ReduceScatter(c, c.inputs, c.outputs[0], words);
      case Verb::kAllReduce:
      case Verb::kReduce:
        return Reduce(c, words);
      default:
        return;  // a barrier: agreeing was one
    }
  }

  // Pieces may differ in size from rank to rank: all are padded to the largest.
  void AllGather(const Piece& in, const std::vector<Piece>& outputs) {
    int64_t largest = in.bytes;
    for (const Piece& p : outputs) largest = std::max(largest, p.bytes);
    at::Tensor mine = at::zeros({largest}, at::TensorOptions(c10::ScalarType::Byte));
    if (in.bytes > 0) std::memcpy(mine.data_ptr(), in.data, static_cast<size_t>(in.bytes));
    at::Tensor all = at::empty({largest * size()}, mine.options());
    gloo_->_allgather_base(all, mine)->wait();
    for (int r = 0; r < size(); ++r) {
      const Piece& to = outputs[static_cast<size_t>(r)];
      if (to.bytes > 0) {
        std::memcpy(to.data, static_cast<char*>(all.data_ptr()) + r * largest, static_cast<size_t>(to.bytes));
      }
    }
  }

  void AllToAll(const std::vector<Piece>& inputs, const std::vector<Piece>& outputs) {
    std::vector<int64_t> in_sizes, out_sizes;
    int64_t in_bytes = 0, out_bytes = 0;
    for (const Piece& p : inputs) in_sizes.push_back(p.bytes), in_bytes += p.bytes;
    for (const Piece& p : outputs) out_sizes.push_back(p.bytes), out_bytes += p.bytes;
    at::Tensor in = at::empty({in_bytes}, at::TensorOptions(c10::ScalarType::Byte));
    at::Tensor out = at::empty({out_bytes}, in.options());
    char* at = static_cast<char*>(in.data_ptr());
    for (const Piece& p : inputs) {
      if (p.bytes > 0) std::memcpy(at, p.data, static_cast<size_t>(p.bytes));
      at += p.bytes;
    }
    gloo_->alltoall_base(out, in, out_sizes, in_sizes)->wait();
    const char* from = static_cast<const char*>(out.data_ptr());
    for (const Piece& p : outputs) {
      if (p.bytes > 0) std::memcpy(p.data, from, static_cast<size_t>(p.bytes));
      from += p.bytes;
    }
  }

  // Everybody's parts of what this rank reduces, one after the other; then the reduction.
  void ReduceScatter(const Collective& c, const std::vector<Piece>& inputs, const Piece& output,
                     const std::vector<Word>& words) {
    std::vector<char> gathered(static_cast<size_t>(output.bytes * size()));
    std::vector<Piece> parts;
    std::vector<const char*> sources;
    std::vector<double> scales;
    for (int r = 0; r < size(); ++r) {
      parts.push_back({gathered.data() + r * output.bytes, output.bytes});
      sources.push_back(parts.back().data);
      if (c.op == ReduceOp::kPremulSum) scales.push_back(words[static_cast<size_t>(r)].scale);
    }
    AllToAll(inputs, parts);
    Combine(c.dtype, c.op, sources, scales, output.bytes / static_cast<int64_t>(SizeOf(c.dtype)), output.data);
  }

  // Each rank reduces a part (reduce-scatter), then the parts are gathered: 2 N bytes a rank, in two steps.
  void Reduce(const Collective& c, const std::vector<Word>& words) {
    const Piece& in = c.inputs[0];
    const int64_t element = static_cast<int64_t>(SizeOf(c.dtype)), count = in.bytes / element;
    std::vector<Piece> parts;
    for (int64_t r = 0; r < size(); ++r) {
      const int64_t begin = count * r / size() * element, end = count * (r + 1) / size() * element;
      parts.push_back({in.data + begin, end - begin});
    }
    std::vector<char> reduced(static_cast<size_t>(parts[static_cast<size_t>(rank())].bytes));
    const Piece mine{reduced.data(), static_cast<int64_t>(reduced.size())};
    ReduceScatter(c, parts, mine, words);
    std::vector<char> unread;  // what ranks other than the root gather
    char* to = nullptr;
    if (c.outputs.empty()) {
      unread.resize(static_cast<size_t>(in.bytes));
      to = unread.data();
    } else {
      to = c.outputs[0].data;
    }
    for (Piece& p : parts) p.data = to + (p.data - in.data);
    AllGather(mine, parts);
  }

  c10::intrusive_ptr<c10d::Work> Message(const Collective& c) {
    std::vector<at::Tensor> t = Bytes(c.verb == Verb::kSend ? c.inputs : c.outputs);
    c10::intrusive_ptr<c10d::Work> work;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (c.verb == Verb::kSend) {
        work = gloo_->send(t, c.peer, c.tag);
      } else {
        work = c.peer == kAnyRank ? gloo_->recvAnysource(t, c.tag) : gloo_->recv(t, c.peer, c.tag);
      }
    }
    work->wait(timeout());
    return work;
  }

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  uint64_t sequence_ = 0;
  std::mutex mutex_;
  absl::Status failure_;  // guarded by mutex_
};

}  // namespace

std::unique_ptr<Group> MakeGlooGroup(c10::intrusive_ptr<c10d::Backend> gloo, std::chrono::milliseconds timeout) {
  return std::make_unique<GlooGroup>(std::move(gloo), timeout);
}

}  // namespace tpu

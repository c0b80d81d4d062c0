#include "collectives/c10d/launch.h"

#include <algorithm>
#include <utility>

namespace tpu {

CollectiveLaunch::CollectiveLaunch(std::shared_ptr<Group> group, std::shared_ptr<DeviceRanks> ranks, Device& device,
                                   Collective collective, const std::vector<Source>& sources,
                                   const std::vector<Target>& targets, std::vector<const TensorType*> types)
    : group_(std::move(group)),
      ranks_(std::move(ranks)),
      device_(device),
      collective_(std::move(collective)),
      types_(std::move(types)) {
  size_t piece = 0;
  for (const Source& s : sources) {
    sources_.push_back({&s.value->type(), s.offset, piece, s.pieces.size()});
    piece += s.pieces.size();
  }
  piece = 0;
  for (const Target& t : targets) {
    targets_.push_back({types_[targets_.size()], 0, piece, t.pieces.size(), t.in_place});
    piece += t.pieces.size();
  }
}

absl::Status CollectiveLaunch::Run(const absl::Status& sound, absl::Span<Argument> arguments,
                                   absl::Span<BufferRef> results) {
  for (const Point& p : first_) p.stream->WaitFor(p.sequence);
  absl::Status status = sound;
  if (status.ok()) {
    status = device_.host_addressable() ? RunInPlace(arguments, results)
             : ranks_ != nullptr        ? RunOnDevices(arguments, results)
                                        : RunOnHostCopies(arguments, results);
  }
  if (!status.ok()) group_->Fail(status);
  return status;
}

absl::StatusOr<int> CollectiveLaunch::RunGroup() {
  if (collective_.peer != kAnyRank) {
    if (absl::Status status = group_->Run(collective_); !status.ok()) return status;
    return collective_.peer;
  }
  const absl::StatusOr<int> source = group_->ReceiveAny(collective_, [this](int rank) {
    const auto receiver = receivers_.find(rank);
    return receiver == receivers_.end() || receiver->second.stream->Done(receiver->second.sequence);
  });
  if (source.ok()) *source_ = *source;
  return source;
}

void CollectiveLaunch::Place(std::vector<Piece>& pieces, size_t first, size_t count, char* data) {
  for (size_t i = first; i < first + count; ++i) {
    pieces[i].data = data;
    data += pieces[i].bytes;
  }
}

absl::Status CollectiveLaunch::RunInPlace(absl::Span<Argument> arguments, absl::Span<BufferRef> results) {
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Slice& s = sources_[i];
    Place(collective_.inputs, s.first_piece, s.pieces, static_cast<char*>(arguments[i].buffer->data()) + s.offset);
  }
  for (size_t i = 0; i < targets_.size(); ++i) {
    const Slice& t = targets_[i];
    const Argument* const over = t.in_place >= 0 ? &arguments[t.in_place] : nullptr;
    if (over != nullptr && over->donated && over->buffer->ref_count() == 1 &&
        over->buffer->bytes() == types_[i]->bytes()) {
      results[i] = over->buffer;
    } else {
      absl::StatusOr<BufferRef> buffer = device_.MakeValue(*types_[i], nullptr);
      if (!buffer.ok()) return buffer.status();
      results[i] = *std::move(buffer);
    }
    Place(collective_.outputs, t.first_piece, t.pieces, static_cast<char*>(results[i]->data()));
  }
  return RunGroup().status();
}

DeviceRanks::PartRef CollectiveLaunch::PartOf(absl::Span<Argument> arguments) const {
  auto part = std::make_shared<DeviceRanks::Part>();
  part->device = &device_;
  part->stream = Stream::Running();
  part->collective = collective_;
  const int64_t element = static_cast<int64_t>(SizeOf(collective_.dtype));
  const auto strip_of = [&](const Slice& slice, const std::vector<Piece>& pieces) {
    Strip strip{*slice.type, slice.offset / element, {}};
    for (size_t p = 0; p < slice.pieces; ++p) strip.pieces.push_back(pieces[slice.first_piece + p].bytes / element);
    return strip;
  };
  for (const Slice& s : sources_) part->sources.push_back(strip_of(s, collective_.inputs));
  for (const Slice& t : targets_) part->targets.push_back(strip_of(t, collective_.outputs));
  for (const Argument& a : arguments) part->inputs.push_back({a.buffer});
  return part;
}

absl::Status CollectiveLaunch::RunOnDevices(absl::Span<Argument> arguments, absl::Span<BufferRef> results) {
  collective_.by_devices = true;
  const DeviceRanks::PartRef part = PartOf(arguments);
  const int rank = group_->rank();
  switch (collective_.verb) {
    case Verb::kBarrier:
      return RunGroup().status();
    case Verb::kSend:
      if (absl::Status status = ranks_->Post(rank, collective_.peer, part); !status.ok()) return status;
      return RunGroup().status();
    case Verb::kRecv: {
      const absl::StatusOr<int> source = RunGroup();
      if (!source.ok()) return source.status();
      if (absl::Status status = ranks_->Fetch(*source, rank, part); !status.ok()) return status;
      break;
    }
    default: {
      const absl::StatusOr<bool> ran = ranks_->Run(*group_, part);
      if (!ran.ok()) return ran.status();
      collective_.by_devices = *ran;
      if (!*ran) return RunOnHostCopies(arguments, results);
    }
  }
  std::move(part->outputs.begin(), part->outputs.end(), results.begin());
  return absl::OkStatus();
}

// Where memory has no addresses, operands are read to the host and results made from there.
absl::Status CollectiveLaunch::RunOnHostCopies(absl::Span<Argument> arguments, absl::Span<BufferRef> results) {
  std::vector<std::vector<char>> in(sources_.size()), out(targets_.size());
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Slice& s = sources_[i];
    int64_t bytes = s.offset;
    for (size_t p = 0; p < s.pieces; ++p) bytes += collective_.inputs[s.first_piece + p].bytes;
    in[i].resize(static_cast<size_t>(bytes));
    if (absl::Status status = device_.CopyToHost(arguments[i].buffer, in[i].data(), in[i].size()); !status.ok()) {
      return status;
    }
    Place(collective_.inputs, s.first_piece, s.pieces, in[i].data() + s.offset);
  }
  for (size_t i = 0; i < targets_.size(); ++i) {
    out[i].resize(types_[i]->bytes());
    Place(collective_.outputs, targets_[i].first_piece, targets_[i].pieces, out[i].data());
  }
  if (absl::Status status = RunGroup().status(); !status.ok()) return status;
  for (size_t i = 0; i < targets_.size(); ++i) {
    absl::StatusOr<BufferRef> buffer = device_.MakeValue(*types_[i], out[i].data());
    if (!buffer.ok()) return buffer.status();
    results[i] = *std::move(buffer);
  }
  return absl::OkStatus();
}

}  // namespace tpu

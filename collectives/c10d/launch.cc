#include "collectives/c10d/launch.h"

#include <utility>

namespace tpu {

CollectiveLaunch::CollectiveLaunch(std::shared_ptr<Group> group, Device& device, Collective collective,
                                   const std::vector<Source>& sources, const std::vector<Target>& targets,
                                   std::vector<const TensorType*> types)
    : group_(std::move(group)), device_(device), collective_(std::move(collective)), types_(std::move(types)) {
  size_t piece = 0;
  for (const Source& s : sources) {
    sources_.push_back({s.offset, piece, s.pieces.size()});
    piece += s.pieces.size();
  }
  piece = 0;
  for (const Target& t : targets) {
    targets_.push_back({0, piece, t.pieces.size(), t.in_place});
    piece += t.pieces.size();
  }
}

absl::Status CollectiveLaunch::Run(const absl::Status& sound, absl::Span<Argument> arguments,
                                   absl::Span<BufferRef> results) {
  for (const Point& p : first_) p.stream->WaitFor(p.sequence);
  absl::Status status = sound;
  if (status.ok()) {
    status = device_.host_addressable() ? RunInPlace(arguments, results) : RunOnHostCopies(arguments, results);
  }
  if (!status.ok()) group_->Fail(status);
  return status;
}

absl::Status CollectiveLaunch::RunGroup() {
  if (collective_.peer != kAnyRank) return group_->Run(collective_);
  const absl::StatusOr<int> source = group_->ReceiveAny(collective_, [this](int rank) {
    const auto receiver = receivers_.find(rank);
    return receiver == receivers_.end() || receiver->second.stream->Done(receiver->second.sequence);
  });
  if (source.ok()) *source_ = *source;
  return source.status();
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
    if (t.in_place >= 0 && arguments[t.in_place].donated &&
        arguments[t.in_place].buffer->bytes() == types_[i]->bytes()) {
      results[i] = arguments[t.in_place].buffer;
    } else {
      absl::StatusOr<BufferRef> buffer = device_.MakeValue(*types_[i], nullptr);
      if (!buffer.ok()) return buffer.status();
      results[i] = *std::move(buffer);
    }
    Place(collective_.outputs, t.first_piece, t.pieces, static_cast<char*>(results[i]->data()));
  }
  return RunGroup();
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
  if (absl::Status status = RunGroup(); !status.ok()) return status;
  for (size_t i = 0; i < targets_.size(); ++i) {
    absl::StatusOr<BufferRef> buffer = device_.MakeValue(*types_[i], out[i].data());
    if (!buffer.ok()) return buffer.status();
    results[i] = *std::move(buffer);
  }
  return absl::OkStatus();
}

}  // namespace tpu

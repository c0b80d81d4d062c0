#include "dispatcher/overlap.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "dispatcher/storage.h"

namespace tpu {
namespace {

// None: its memory is elsewhere, or it has none.
TpuStorage* StorageOf(const at::Tensor& t) {
  if (t.device().type() != c10::DeviceType::PrivateUse1 || t._is_zerotensor() || !IsPlain(t)) return nullptr;
  return &TpuStorage::Of(*t.unsafeGetTensorImpl());
}

// A tensor of a call, in a storage that the call writes.
struct Member {
  const TpuStorage* storage;
  int64_t begin, end;  // where it lies: bytes, with those between its elements
  uint32_t place;
  bool written;
  const at::Tensor* tensor;
};

Member MemberOf(const TpuStorage* storage, const at::Tensor& t, uint32_t place, bool written) {
  const auto element = static_cast<int64_t>(t.itemsize());
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += std::max<int64_t>(t.size(d) - 1, 0) * t.stride(d);
  const int64_t begin = t.storage_offset() * element;
  return {storage, begin, begin + (last + 1) * element, place, written, &t};
}

// How a tensor lies in rows: where they begin, and how long one is, in bytes.
struct Rows {
  int64_t stride = 0, length;
};
Rows RowsOf(const Member& m) {
  Rows rows{.length = m.end - m.begin};
  int64_t more = 0;  // rows than one
  for (int64_t d = 0; d < m.tensor->dim(); ++d) {
    const int64_t stride = m.tensor->stride(d) * static_cast<int64_t>(m.tensor->itemsize());
    if (m.tensor->size(d) > 1 && stride > rows.stride) rows.stride = stride, more = m.tensor->size(d) - 1;
  }
  rows.length -= more * rows.stride;
  return rows;
}

// Whether rows of both lie beside each other, as columns of a matrix do. a begins first.
bool BesideEachOther(const Member& a, const Member& b) {
  Rows rows_a = RowsOf(a), rows_b = RowsOf(b);
  const int64_t stride = std::max(rows_a.stride, rows_b.stride);
  if (stride == 0) return false;
  if (rows_a.stride < stride) rows_a.length = a.end - a.begin;  // all of it within a row of the other
  if (rows_b.stride < stride) rows_b.length = b.end - b.begin;
  const int64_t apart = (b.begin - a.begin) % stride;
  return apart >= rows_a.length && stride - apart >= rows_b.length;
}

void AddOverlap(const Member& a, const Member& b, Overlaps& overlaps) {
  using Kind = Overlap::Kind;
  using Status = at::MemOverlapStatus;
  const Status status = at::get_overlap_status(*a.tensor, *b.tensor);
  if (status == Status::No || (status == Status::TooHard && BesideEachOther(a, b))) return;
  const Kind kind = a.tensor->is_same(*b.tensor) ? Kind::kSameTensor
                    : status == Status::Full     ? Kind::kFull
                    : status == Status::Partial  ? Kind::kPartial
                                                 : Kind::kPerhaps;
  const auto [first, second] = std::minmax(a.place, b.place);
  overlaps.push_back({first, second, kind});
}

// Whether elements of the tensor lie in one place; also of some whose strides interleave without that.
bool OverlapsItself(const at::Tensor& t) {
  const at::MemOverlap known = at::has_internal_overlap(t);
  if (known != at::MemOverlap::TooHard) return known == at::MemOverlap::Yes;
  absl::InlinedVector<std::pair<int64_t, int64_t>, 6> steps;  // strides and sizes
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) > 1) steps.emplace_back(t.stride(d), t.size(d));
  }
  std::sort(steps.begin(), steps.end());
  int64_t reach = 0;  // the last place of the dimensions of smaller strides
  for (const auto& [stride, size] : steps) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

}  // namespace

Overlaps FindOverlaps(const Operator& op, at::ArrayRef<c10::IValue> arguments) {
  Overlaps overlaps;
  if (op.mutated.empty()) return overlaps;
  // Each storage that is written is marked with this thread's next number.
  static std::atomic<uint64_t> threads{0};
  static thread_local uint64_t last_mark = ++threads << 40;
  const uint64_t mark = ++last_mark;
  const auto visit_all = [&](auto visit) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const bool written = op.Writes(static_cast<int>(i));
      VisitTensors(arguments[i], op.kinds[i], [&](const at::Tensor& t) { visit(t, written); });
    }
  };
  bool shared = false;
  visit_all([&](const at::Tensor& t, bool written) {
    TpuStorage* const storage = written ? StorageOf(t) : nullptr;
    if (storage == nullptr) return;
    shared |= storage->mark() == mark;
    storage->set_mark(mark);
  });
  visit_all([&](const at::Tensor& t, bool written) {
    const TpuStorage* const storage = written ? nullptr : StorageOf(t);
    shared |= storage != nullptr && storage->mark() == mark;
  });
  if (C10_LIKELY(!shared)) return overlaps;
  std::vector<Member> members;
  uint32_t place = 0;
  visit_all([&](const at::Tensor& t, bool written) {
    const TpuStorage* const storage = StorageOf(t);
    if (storage != nullptr && storage->mark() == mark) members.push_back(MemberOf(storage, t, place, written));
    ++place;
  });
  std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) {
    return std::tie(a.storage, a.begin) < std::tie(b.storage, b.begin);
  });
  for (auto a = members.begin(); a != members.end(); ++a) {
    for (auto b = a + 1; b != members.end() && b->storage == a->storage && b->begin < a->end; ++b) {
      if (a->written || b->written) AddOverlap(*a, *b, overlaps);
    }
  }
  std::sort(overlaps.begin(), overlaps.end(), [](const Overlap& a, const Overlap& b) {
    return std::tie(a.first, a.second) < std::tie(b.first, b.second);
  });
  return overlaps;
}

void CountWrite(const Operator& op, const at::Tensor& written) {
  if (op.out.empty() && op.for_each) written.unsafeGetTensorImpl()->bump_version();
}

bool ReadsWhatItWrote(const Operator& op, at::ArrayRef<c10::IValue> arguments) {
  const Overlaps overlaps = FindOverlaps(op, arguments);
  if (overlaps.empty()) return false;
  struct Place {
    int turn;  // its place in its list, or none
    bool in_written_list;
  };
  std::vector<Place> places;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool list = op.kinds[i] == ArgumentKind::kTensorList, written = op.Writes(static_cast<int>(i));
    int turn = 0;
    VisitTensors(arguments[i], op.kinds[i],
                 [&](const at::Tensor&) { places.push_back({list ? turn++ : -1, list && written}); });
  }
  return std::any_of(overlaps.begin(), overlaps.end(), [&](const Overlap& overlap) {
    const Place &one = places[overlap.first], &other = places[overlap.second];
    return one.turn != other.turn && (one.in_written_list || other.in_written_list);
  });
}

bool WritesOverItself(const Operator& op, at::ArrayRef<c10::IValue> arguments) {
  bool found = false;
  for (const int m : op.mutated) {
    VisitTensors(arguments[m], op.kinds[m], [&](const at::Tensor& t) { found |= IsPlain(t) && OverlapsItself(t); });
  }
  return found;
}

}  // namespace tpu

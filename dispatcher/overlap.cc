#include "dispatcher/overlap.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
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

const at::Tensor& TensorAt(const Operator& op, at::ArrayRef<c10::IValue> arguments, uint64_t place) {
  const at::Tensor* found = nullptr;
  uint64_t at = 0;
  for (size_t i = 0; i < arguments.size() && found == nullptr; ++i) {
    VisitTensors(arguments[i], op.kinds[i], [&](const at::Tensor& t) {
      if (at++ == place) found = &t;
    });
  }
  return *found;
}

void AddOverlap(const at::Tensor& a, const at::Tensor& b, uint64_t place_a, uint64_t place_b, Overlaps& overlaps) {
  const at::MemOverlapStatus status = at::get_overlap_status(a, b);
  const bool full = status == at::MemOverlapStatus::Full;
  if (!full && status != at::MemOverlapStatus::Partial) return;
  using Kind = Overlap::Kind;
  const Kind kind = a.is_same(b) ? Kind::kSameTensor : full ? Kind::kFull : Kind::kPartial;
  const auto [first, second] = std::minmax(place_a, place_b);
  overlaps.push_back({static_cast<uint32_t>(first), static_cast<uint32_t>(second), kind});
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
  // Each storage that is written is marked with this thread's next numbers: the place of the tensor that marked it.
  static std::atomic<uint64_t> threads{0};
  static thread_local uint64_t marks = ++threads << 40;
  const uint64_t first_mark = marks + 1;
  uint64_t place = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool written = op.Writes(static_cast<int>(i));
    VisitTensors(arguments[i], op.kinds[i], [&](const at::Tensor& t) {
      TpuStorage* const storage = written ? StorageOf(t) : nullptr;
      if (storage != nullptr && storage->mark() - first_mark >= place) storage->set_mark(first_mark + place);
      ++place;
    });
  }
  marks += place;
  const uint64_t places = place;
  place = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    VisitTensors(arguments[i], op.kinds[i], [&](const at::Tensor& t) {
      const TpuStorage* const storage = StorageOf(t);
      const uint64_t writer = storage == nullptr ? places : storage->mark() - first_mark;
      if (C10_UNLIKELY(writer < places && writer != place)) {
        AddOverlap(TensorAt(op, arguments, writer), t, writer, place, overlaps);
      }
      ++place;
    });
  }
  return overlaps;
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

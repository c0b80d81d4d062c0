#include "runtime/host/plan.h"

#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "runtime/bytes.h"
#include "runtime/host/plan_check.h"

namespace tpu::host {
namespace {

constexpr std::string_view kMagic = "TPUHOST5";

// Writing and reading share one description of the format (the Visit functions): a field can't be in one alone.
// Numbers take 64 bits each, whatever their type.
class Writer {
 public:
  template <typename T>
  void operator()(T& field) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      bytes_.U64(static_cast<uint64_t>(field));
    } else if constexpr (std::is_same_v<T, std::string>) {
      bytes_.String(field);
    } else {
      Visit(*this, field);
    }
  }
  template <typename T>
  void operator()(std::vector<T>& items) {
    bytes_.U64(items.size());
    for (T& item : items) (*this)(item);
  }
  std::string Take() && { return std::move(bytes_).Take(); }

 private:
  ByteWriter bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view in) : bytes_(in) {}

  template <typename T>
  void operator()(T& field) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      const uint64_t raw = bytes_.U64();
      field = static_cast<T>(raw);
      in_range_ &= static_cast<uint64_t>(field) == raw;
    } else if constexpr (std::is_same_v<T, std::string>) {
      field = bytes_.String();
    } else {
      Visit(*this, field);
    }
  }
  template <typename T>
  void operator()(std::vector<T>& items) {
    const uint64_t count = bytes_.Count(sizeof(uint64_t));
    for (uint64_t i = 0; i < count && ok(); ++i) (*this)(items.emplace_back());
  }
  bool ok() const { return bytes_.ok() && in_range_; }
  bool AtEnd() const { return bytes_.AtEnd(); }

 private:
  ByteReader bytes_;
  bool in_range_ = true;  // every number fits its field
};

// What Writer writes, in two parts: 64-bit numbers (sizes, offsets, strides), of which some can be given new values,
// and the rest (indices, kinds, texts, lengths of lists).
class Parts {
 public:
  template <typename T>
  void operator()(T& field) {
    if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, uint64_t>) {
      Number(field);
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      frame_.U64(static_cast<uint64_t>(field));
    } else if constexpr (std::is_same_v<T, std::string>) {
      frame_.String(field);
    } else {
      Visit(*this, field);
    }
  }
  template <typename T>
  void operator()(std::vector<T>& items) {
    frame_.U64(items.size());
    for (T& item : items) (*this)(item);
  }
  void Set(absl::Span<const std::pair<uint32_t, int64_t>> numbers) { to_set_ = numbers; }
  // All that was to be set has been.
  bool done() const { return to_set_.empty() && in_range_; }

  std::vector<int64_t> numbers;
  std::string TakeFrame() && { return std::move(frame_).Take(); }

 private:
  template <typename T>
  void Number(T& field) {
    if (!to_set_.empty() && to_set_.front().first == numbers.size()) {
      const int64_t value = to_set_.front().second;
      field = static_cast<T>(value);
      in_range_ &= static_cast<int64_t>(field) == value && (value >= 0 || std::is_signed_v<T>);
      to_set_.remove_prefix(1);
    }
    numbers.push_back(static_cast<int64_t>(field));
  }

  ByteWriter frame_;
  absl::Span<const std::pair<uint32_t, int64_t>> to_set_;
  bool in_range_ = true;
};

template <typename V>
void Visit(V& v, Slot& s) {
  v(s.kind), v(s.index), v(s.offset), v(s.bytes);
}

template <typename V>
void Visit(V& v, GemmStep& g) {
  v(g.dtype), v(g.out_dtype), v(g.trans_a), v(g.trans_b), v(g.accumulate), v(g.triangle), v(g.method);
  v(g.m), v(g.n), v(g.k), v(g.lda), v(g.ldb), v(g.ldc), v(g.offset_a), v(g.offset_b), v(g.offset_c);
  v(g.batch), v(g.stride_a), v(g.stride_b), v(g.stride_c);
}

template <typename V>
void Visit(V& v, Step& s) {
  v(s.kind), v(s.label), v(s.slots);
  switch (s.kind) {
    case Step::Kind::kKernel:
      v(s.kernel.kernel), v(s.kernel.rows), v(s.kernel.row), v(s.kernel.block), v(s.kernel.grain),
          v(s.kernel.parameters);
      break;
    case Step::Kind::kGemm:
      v(s.gemm);
      break;
    case Step::Kind::kCall:
      v(s.call.node), v(s.call.num_inputs);
      break;
    case Step::Kind::kCopy:
      break;
  }
}

template <typename V>
void Visit(V& v, TileLoop& l) {
  v(l.first), v(l.count), v(l.tiles);
}

template <typename V>
void Visit(V& v, KernelCode& k) {
  v(k.key), v(k.object);
}

template <typename V>
void Visit(V& v, OutputSpec& o) {
  v(o.kind), v(o.source), v(o.may_overwrite), v(o.bytes);
}

template <typename V>
void Visit(V& v, Plan& p) {
  v(p.slots), v(p.steps), v(p.tile_loops), v(p.kernels), v(p.outputs);
  v(p.num_inputs), v(p.num_call_buffers), v(p.arena_bytes), v(p.thread_bytes), v(p.constants);
}

}  // namespace

std::string Plan::Serialize() const {
  Writer writer;
  Plan copy = *this;  // Visit serves reading too, so it takes what it may change
  writer(copy);
  return std::string(kMagic) + std::move(writer).Take();
}

std::vector<int64_t> Plan::Numbers() const {
  Parts parts;
  Plan copy = *this;
  parts(copy);
  return std::move(parts.numbers);
}

std::string Plan::Frame() const {
  Parts parts;
  Plan copy = *this;
  parts(copy);
  return std::move(parts).TakeFrame();
}

absl::Status Plan::SetNumbers(absl::Span<const std::pair<uint32_t, int64_t>> numbers) {
  Parts parts;
  parts.Set(numbers);
  parts(*this);
  return parts.done() ? absl::OkStatus() : absl::InvalidArgumentError("host plan: a field has no such value");
}

absl::StatusOr<Plan> Plan::Parse(std::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic) return absl::InvalidArgumentError("host plan: wrong magic or version");
  Reader reader(bytes.substr(kMagic.size()));
  Plan plan;
  reader(plan);
  if (!reader.ok()) return absl::InvalidArgumentError("host plan: cut short, or a field has no such value");
  if (!reader.AtEnd()) return absl::InvalidArgumentError("host plan: bytes after its end");
  if (absl::Status status = CheckPlan(plan); !status.ok()) return status;
  return plan;
}

}  // namespace tpu::host

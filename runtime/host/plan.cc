#include "runtime/host/plan.h"

#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/bytes.h"
#include "runtime/host/plan_check.h"

namespace tpu::host {
namespace {

constexpr std::string_view kMagic = "TPUHOST11";

// Writing and reading share one description of the format (the Visit functions): a field can't be in one alone.
// Numbers take 64 bits each, whatever their type.
class Writer {
 public:
  template <typename T>
  void operator()(const T& field) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      bytes_.U64(static_cast<uint64_t>(field));
    } else if constexpr (std::is_same_v<T, std::string>) {
      bytes_.String(field);
    } else {
      Visit(*this, field);
    }
  }
  template <typename T>
  void operator()(const std::vector<T>& items) {
    bytes_.U64(items.size());
    for (const T& item : items) (*this)(item);
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

// The numbers that vary with a size: sizes, offsets, strides. Indices have fewer bits.
template <typename T>
constexpr bool kIsNumber = std::is_same_v<T, int64_t> || std::is_same_v<T, uint64_t>;

// What Writer writes, in two parts.
class Splitter {
 public:
  template <typename T>
  void operator()(const T& field) {
    if constexpr (kIsNumber<T>) {
      parts_.numbers.push_back(static_cast<int64_t>(field));
    } else if constexpr (std::is_class_v<T> && !std::is_same_v<T, std::string>) {
      Visit(*this, field);
    } else {
      frame_(field);
    }
  }
  template <typename T>
  void operator()(const std::vector<T>& items) {
    frame_(items.size());
    for (const T& item : items) (*this)(item);
  }
  Plan::Parts Take() && {
    parts_.frame = std::move(frame_).Take();
    return std::move(parts_);
  }

 private:
  Plan::Parts parts_;
  Writer frame_;
};

// Gives some of the numbers new values.
class Setter {
 public:
  explicit Setter(absl::Span<const std::pair<uint32_t, int64_t>> numbers) : left_(numbers) {}

  template <typename T>
  void operator()(T& field) {
    if constexpr (kIsNumber<T>) {
      if (!left_.empty() && left_.front().first == place_) {
        const int64_t value = left_.front().second;
        field = static_cast<T>(value);
        in_range_ &= value >= 0 || std::is_signed_v<T>;
        left_.remove_prefix(1);
      }
      ++place_;
    } else if constexpr (std::is_class_v<T> && !std::is_same_v<T, std::string>) {
      Visit(*this, field);
    }
  }
  template <typename T>
  void operator()(std::vector<T>& items) {
    for (T& item : items) (*this)(item);
  }
  bool done() const { return left_.empty() && in_range_; }

 private:
  absl::Span<const std::pair<uint32_t, int64_t>> left_;
  size_t place_ = 0;
  bool in_range_ = true;
};

// T, to be written or read.
template <typename S, typename T>
concept Some = std::is_same_v<std::remove_const_t<S>, T>;

template <typename V>
void Visit(V& v, Some<Slot> auto& s) {
  v(s.kind), v(s.index), v(s.offset), v(s.bytes);
}

template <typename V>
void Visit(V& v, Some<GemmStep> auto& g) {
  v(g.dtype), v(g.out_dtype), v(g.trans_a), v(g.trans_b), v(g.accumulate), v(g.triangle), v(g.method);
  v(g.m), v(g.n), v(g.k), v(g.lda), v(g.ldb), v(g.ldc), v(g.offset_a), v(g.offset_b), v(g.offset_c);
  v(g.batch), v(g.stride_a), v(g.stride_b), v(g.stride_c);
}

template <typename V>
void Visit(V& v, Some<ConvStep::Dim> auto& d) {
  v(d.in), v(d.out), v(d.kernel), v(d.stride), v(d.dilation), v(d.low), v(d.spread);
}

template <typename V>
void Visit(V& v, Some<ConvStep> auto& c) {
  v(c.kind), v(c.dtype), v(c.batch), v(c.in), v(c.out), v(c.groups), v(c.rows), v(c.cols);
}

template <typename V>
void Visit(V& v, Some<Step> auto& s) {
  v(s.kind), v(s.label), v(s.slots), v(s.num_inputs);
  switch (s.kind) {
    case Step::Kind::kKernel:
      v(s.kernel.kernel), v(s.kernel.rows), v(s.kernel.row), v(s.kernel.block), v(s.kernel.grain),
          v(s.kernel.parameters), v(s.kernel.sure);
      break;
    case Step::Kind::kGemm:
      v(s.gemm);
      break;
    case Step::Kind::kCall:
      v(s.call.node);
      break;
    case Step::Kind::kCopy:
      v(s.copy.run), v(s.copy.sizes), v(s.copy.strides);
      break;
    case Step::Kind::kConv:
      v(s.conv);
      break;
  }
}

template <typename V>
void Visit(V& v, Some<TileLoop> auto& l) {
  v(l.first), v(l.count), v(l.parts), v(l.of_group), v(l.of_tile);
}

template <typename V>
void Visit(V& v, Some<KernelCode> auto& k) {
  v(k.key), v(k.object);
}

template <typename V>
void Visit(V& v, Some<OutputSpec> auto& o) {
  v(o.kind), v(o.source), v(o.may_overwrite), v(o.bytes);
}

template <typename V>
void Visit(V& v, Some<Plan> auto& p) {
  v(p.slots), v(p.steps), v(p.tile_loops), v(p.kernels), v(p.outputs);
  v(p.num_inputs), v(p.num_call_buffers), v(p.arena_bytes), v(p.thread_bytes), v(p.constants);
}

}  // namespace

std::vector<Plan::Stage> Plan::Stages() const {
  std::vector<Stage> stages;
  auto loop = tile_loops.begin();
  for (size_t i = 0; i < steps.size(); i += stages.back().count) {
    const bool tiled = loop != tile_loops.end() && loop->first == i;
    stages.push_back({i, tiled ? loop->count : 1, tiled ? &*loop : nullptr});
    if (tiled) ++loop;
  }
  return stages;
}

std::string Plan::LabelOf(const Stage& stage) const {
  const auto begin = steps.begin() + static_cast<ptrdiff_t>(stage.first);
  return absl::StrJoin(begin, begin + static_cast<ptrdiff_t>(stage.count), "; ",
                       [](std::string* out, const Step& step) { absl::StrAppend(out, step.label); });
}

std::string Plan::Serialize() const {
  Writer writer;
  writer(*this);
  return std::string(kMagic) + std::move(writer).Take();
}

Plan::Parts Plan::Split() const {
  Splitter splitter;
  splitter(*this);
  return std::move(splitter).Take();
}

absl::Status Plan::SetNumbers(absl::Span<const std::pair<uint32_t, int64_t>> numbers) {
  Setter setter(numbers);
  setter(*this);
  return setter.done() ? absl::OkStatus() : absl::InvalidArgumentError("host plan: a field has no such value");
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

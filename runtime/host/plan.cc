#include "runtime/host/plan.h"

#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/host/plan_check.h"

namespace tpu::host {
namespace {

constexpr std::string_view kMagic = "TPUHOST2";

// Writing and reading are one description of the format (Visit below): a field can't be in one and not in the other.
class Writer {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void operator()(const T& value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void operator()(const std::string& text) {
    (*this)(static_cast<uint64_t>(text.size()));
    out_.append(text);
  }
  template <typename T>
  void operator()(const std::vector<T>& items) {
    (*this)(static_cast<uint64_t>(items.size()));
    for (const T& item : items) Field(item);
  }
  template <typename T>
  void Field(const T& item) {
    if constexpr (requires { (*this)(item); }) {
      (*this)(item);
    } else {
      Visit(*this, const_cast<T&>(item));
    }
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::string_view in) : in_(in) {}

  template <typename T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      uint8_t byte = 0;
      (*this)(byte);
      if (byte > 1) failed_ = true;
      value = byte == 1;
    } else {
      std::string_view raw = Take(sizeof(T));
      if (!failed_) std::memcpy(&value, raw.data(), sizeof(T));
    }
  }
  void operator()(std::string& text) {
    uint64_t size = 0;
    (*this)(size);
    text = Take(size);
  }
  template <typename T>
  void operator()(std::vector<T>& items) {
    uint64_t size = 0;
    (*this)(size);
    // Every item takes at least a byte, so a size that can't be is refused before memory is taken for it.
    if (failed_ || size > in_.size()) {
      failed_ = true;
      return;
    }
    items.clear();
    for (uint64_t i = 0; i < size && !failed_; ++i) {
      T item{};
      if constexpr (requires { (*this)(item); }) {
        (*this)(item);
      } else {
        Visit(*this, item);
      }
      items.push_back(std::move(item));
    }
  }
  template <typename T>
  void Field(T& item) {
    Visit(*this, item);
  }
  std::string_view Take(uint64_t size) {
    if (failed_ || size > in_.size()) {
      failed_ = true;
      return {};
    }
    std::string_view taken = in_.substr(0, size);
    in_.remove_prefix(size);
    return taken;
  }
  bool failed() const { return failed_; }
  bool at_end() const { return in_.empty(); }

 private:
  std::string_view in_;
  bool failed_ = false;
};

template <typename V>
void Visit(V& v, Slot& s) {
  v(s.kind), v(s.index), v(s.offset), v(s.bytes);
}

template <typename V>
void Visit(V& v, GemmStep& g) {
  v(g.dtype), v(g.out_dtype), v(g.trans_a), v(g.trans_b), v(g.accumulate);
  v(g.m), v(g.n), v(g.k), v(g.lda), v(g.ldb), v(g.ldc), v(g.offset_a), v(g.offset_b), v(g.offset_c);
  v(g.batch), v(g.stride_a), v(g.stride_b), v(g.stride_c), v(g.epilogue), v(g.epilogue_slots);
}

template <typename V>
void Visit(V& v, Step& s) {
  v(s.kind), v(s.label), v(s.slots);
  switch (s.kind) {
    case Step::Kind::kKernel:
      v(s.kernel.kernel), v(s.kernel.extent), v(s.kernel.grain);
      break;
    case Step::Kind::kGemm:
      v.Field(s.gemm);
      break;
    case Step::Kind::kCall:
      v(s.call.node), v(s.call.num_inputs);
      break;
    case Step::Kind::kCopy:
      break;
  }
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
  v(p.slots), v(p.steps), v(p.kernels), v(p.outputs);
  v(p.num_inputs), v(p.num_call_buffers), v(p.arena_bytes), v(p.constants);
}

}  // namespace

std::string Plan::Serialize() const {
  Writer writer;
  Visit(writer, const_cast<Plan&>(*this));
  return std::string(kMagic) + writer.Take();
}

absl::StatusOr<Plan> Plan::Parse(std::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic) return absl::InvalidArgumentError("host plan: wrong magic or version");
  Reader reader(bytes.substr(kMagic.size()));
  Plan plan;
  Visit(reader, plan);
  if (reader.failed()) return absl::InvalidArgumentError("host plan: cut short, or a field has no such value");
  if (!reader.at_end()) return absl::InvalidArgumentError("host plan: bytes after its end");
  if (absl::Status status = CheckPlan(plan); !status.ok()) return status;
  return plan;
}

}  // namespace tpu::host

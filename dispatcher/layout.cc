#include "dispatcher/layout.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "dispatcher/convert.h"
#include "runtime/hash.h"

namespace tpu {
namespace {

struct Key {
  c10::ScalarType type;
  c10::IntArrayRef sizes, strides;
};
Key KeyOf(const Key& k) { return k; }
Key KeyOf(const std::unique_ptr<Layout>& l) { return {l->scalar_type, l->sizes(), l->stride_ref()}; }

struct Hash {
  using is_transparent = void;
  template <typename T>
  size_t operator()(const T& x) const {
    const Key k = KeyOf(x);
    uint64_t h = static_cast<uint64_t>(k.type) + 0x9E37;
    for (int64_t v : k.sizes) h = HashMix(h, static_cast<uint64_t>(v));
    h = HashMix(h, ~0ull);
    for (int64_t v : k.strides) h = HashMix(h, static_cast<uint64_t>(v));
    return h;
  }
};
struct Equal {
  using is_transparent = void;
  template <typename A, typename B>
  bool operator()(const A& a, const B& b) const {
    const Key x = KeyOf(a), y = KeyOf(b);
    return x.type == y.type && x.sizes == y.sizes && x.strides == y.strides;
  }
};

Dims RowMajorStrides(c10::IntArrayRef sizes) {
  Dims strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

// Dimensions of size 1 may have any stride.
bool IsRowMajor(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (strides[i] != step) return false;
    step *= sizes[i];
  }
  return true;
}

bool IsDense(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return sizes[a] == 1 || sizes[b] == 1 ? sizes[a] > sizes[b] : strides[a] < strides[b];
  });
  int64_t step = 1;
  for (size_t i : order) {
    if (sizes[i] == 1) continue;
    if (strides[i] != step) return false;
    step *= sizes[i];
  }
  return true;
}

}  // namespace

const Layout* InternLayout(c10::ScalarType type, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  static std::mutex mutex;
  static auto* layouts = new absl::flat_hash_set<std::unique_ptr<Layout>, Hash, Equal>();
  std::lock_guard<std::mutex> lock(mutex);
  auto it = layouts->find(Key{type, sizes, strides});
  if (it != layouts->end()) return it->get();
  auto layout = std::make_unique<Layout>();
  layout->scalar_type = type;
  layout->type.dtype = ToDType(type);
  layout->type.dims.assign(sizes.begin(), sizes.end());
  layout->strides.assign(strides.begin(), strides.end());
  const int64_t elements = NumElements(layout->type.dims);
  layout->row_major = elements == 0 || IsRowMajor(sizes, strides);
  layout->dense = layout->row_major || IsDense(sizes, strides);
  layout->bytes = static_cast<size_t>(elements) * c10::elementSize(type);
  return layouts->insert(std::move(layout)).first->get();
}

const Layout* InternLayout(c10::ScalarType type, c10::IntArrayRef sizes) {
  const Dims strides = RowMajorStrides(sizes);
  return InternLayout(type, sizes, {strides.data(), strides.size()});
}

const Layout* LayoutLike(const at::Tensor& cpu) {
  const Layout* layout = InternLayout(cpu.scalar_type(), cpu.sizes(), cpu.strides());
  return layout->dense ? layout : InternLayout(cpu.scalar_type(), cpu.sizes());
}

const Layout* InternLayout(const TensorType& type) {
  return InternLayout(ToScalarType(type.dtype), {type.dims.data(), type.dims.size()});
}

}  // namespace tpu

#include "runtime/host/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "runtime/host/parallel.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tpu::host {
namespace {

// Bytes worth a thread.
constexpr int64_t kGrain = 512 << 10;
// What is larger would push everything else out of the cache, and stores that bypass it need not read the line first.
constexpr size_t kStreamed = 8 << 20;
// Bytes that a memcpy of a run of its own takes as long as.
constexpr int64_t kRunCost = 64;

#if defined(__SSE2__)
void StreamBytes(char* to, const char* from, size_t bytes) {
  const size_t head = -reinterpret_cast<uintptr_t>(to) & 63;
  if (bytes < head + 64) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + 64 <= bytes; at += 64) {
    const __m128i* in = reinterpret_cast<const __m128i*>(from + at);
    __m128i* out = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  _mm_sfence();  // other threads read what was written once this one says so
  std::memcpy(to + at, from + at, bytes - at);
}
#else
void StreamBytes(char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); }
#endif

}  // namespace

void CopyBytes(void* to, const void* from, size_t bytes) {
  if (to == from || bytes == 0) return;
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
  ParallelFor(static_cast<int64_t>(bytes), kGrain, [&](int64_t begin, int64_t end) {
    const size_t piece = static_cast<size_t>(end - begin);
    if (bytes >= kStreamed) {
      StreamBytes(out + begin, in + begin, piece);
    } else {
      std::memcpy(out + begin, in + begin, piece);
    }
  });
}

void CopyRuns(void* to, const void* from, int64_t run, absl::Span<const int64_t> sizes,
              absl::Span<const int64_t> strides) {
  int64_t runs = 1;
  for (int64_t size : sizes) runs *= size;
  ParallelFor(runs, std::max<int64_t>(1, kGrain / (run + kRunCost)), [&](int64_t begin, int64_t end) {
    const char* in = static_cast<const char*>(from) + begin * run;
    absl::InlinedVector<int64_t, 8> at(sizes.size());
    char* out = static_cast<char*>(to);
    for (int64_t d = static_cast<int64_t>(sizes.size()) - 1, left = begin; d >= 0; --d) {
      at[d] = left % sizes[d];
      left /= sizes[d];
      out += at[d] * strides[d];
    }
    for (int64_t i = begin; i < end; ++i, in += run) {
      std::memcpy(out, in, static_cast<size_t>(run));
      for (size_t d = sizes.size(); d-- > 0;) {
        out += strides[d];
        if (++at[d] < sizes[d]) break;
        out -= at[d] * strides[d];
        at[d] = 0;
      }
    }
  });
}

}  // namespace tpu::host

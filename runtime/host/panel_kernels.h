// What panels are made with: kernels that sum a tile of the result in registers, for each instruction set.
//
// Included by panel_gemm.cc alone, which asks the machine what it has.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "runtime/host/lanes.h"
#include "runtime/host/narrow_float.h"
#include "runtime/host/panel_packing.h"

#define TPU_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))

namespace tpu::host {

// A kernel: c[kRows x kCols] (+)= sum over p of a[i * row_stride + p * depth_stride] * b[p * kCols + j], of as many
// columns as kVectors registers have. Rows, Columns and Packed are the same where strides are known, and so the
// addressing.
// Written for each instruction set: a function's target can't depend on a template's argument.
struct Avx2 {
  static constexpr int64_t kLanes = 8;
  static constexpr int64_t kRows = 4;             // by
  static constexpr int64_t kCols = 24;            // are 12 registers of sums
  static constexpr int64_t kDepth = 256;          // words of a pass
  static constexpr int64_t kGatheredDepth = 288;  // the same where B is gathered

  // Column p of A's rows begins at left(p), row p of B is at right(p): `kVectors` registers of 8 columns.
  template <int kVectors, typename Left, typename Right>
  TPU_AVX2 static TPU_INLINE void Multiply(int64_t depth, const Left& left, int64_t row_stride, const Right& right,
                                           float* c, int64_t ldc, bool accumulate) {
    __m256 sums[kRows][kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      Prefetch(c + i * ldc);
      Prefetch(c + i * ldc + 8 * kVectors - 1);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm256_setzero_ps();
    }
#pragma GCC unroll 2
    for (int64_t p = 0; p < depth; ++p) {
      const float* const a = left(p);
      const float* const b = right(p);
      __m256 row[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) row[v] = _mm256_loadu_ps(b + 8 * v);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const __m256 x = _mm256_broadcast_ss(a + i * row_stride);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm256_fmadd_ps(x, row[v], sums[i][v]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        float* const to = c + i * ldc + 8 * v;
        _mm256_storeu_ps(to, accumulate ? _mm256_add_ps(sums[i][v], _mm256_loadu_ps(to)) : sums[i][v]);
      }
    }
  }
  TPU_AVX2 static TPU_INLINE auto Every(const float* from, int64_t stride) {
    return [=](int64_t p) TPU_AVX2 { return from + p * stride; };
  }
  TPU_AVX2 static TPU_INLINE auto Where(const float* from, const int32_t* offsets) {
    return [=](int64_t p) TPU_AVX2 { return from + offsets[p]; };
  }
  template <int kVectors>
  TPU_AVX2 static void Rows(int64_t depth, const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                            bool accumulate) {
    Multiply<kVectors>(depth, Every(a, 1), lda, Every(b, kCols), c, ldc, accumulate);
  }
  template <int kVectors>
  TPU_AVX2 static void Columns(int64_t depth, const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                               bool accumulate) {
    Multiply<kVectors>(depth, Every(a, lda), 1, Every(b, kCols), c, ldc, accumulate);
  }
  // A's columns are where `depths` says, B's rows where `rows` does.
  template <int kVectors>
  TPU_AVX2 static void Gathered(int64_t depth, const float* a, int64_t row_stride, const int32_t* depths,
                                const float* b, const int32_t* rows, float* c, int64_t ldc, bool accumulate) {
    Multiply<kVectors>(depth, Where(a, depths), row_stride, Where(b, rows), c, ldc, accumulate);
  }
};

// Of words that are f32 (T = float) or pairs of bf16. For f32 it uses nothing that only machines with bf16 have.
template <typename T>
struct Avx512 {
  static constexpr int64_t kLanes = 16;
  static constexpr int64_t kRows = 8;             // by
  static constexpr int64_t kCols = 32;            // are 16 registers of sums
  static constexpr int64_t kDepth = 512;          // words of a pass
  static constexpr int64_t kGatheredDepth = 576;  // the same where B is gathered

  TPU_AVX512 static TPU_INLINE __m512 AddProduct(__m512 sum, __m512 x, __m512 y) {
    if constexpr (std::is_same_v<T, float>) {
      return _mm512_fmadd_ps(x, y, sum);
    } else {
      return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
    }
  }
  // Column p of A's rows begins at left(p), row p of B is at right(p): `kVectors` registers of 16 columns.
  template <int kVectors, typename Left, typename Right>
  TPU_AVX512 static TPU_INLINE void Multiply(int64_t depth, const Left& left, int64_t row_stride, const Right& right,
                                             float* c, int64_t ldc, bool accumulate) {
    __m512 sums[kRows][kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        Prefetch(c + i * ldc + 16 * v);
        sums[i][v] = _mm512_setzero_ps();
      }
    }
#pragma GCC unroll 4
    for (int64_t p = 0; p < depth; ++p) {
      const float* const a = left(p);
      const float* const b = right(p);
      __m512 row[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) row[v] = _mm512_loadu_ps(b + 16 * v);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const __m512 x = _mm512_set1_ps(a[i * row_stride]);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sums[i][v] = AddProduct(sums[i][v], x, row[v]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        float* const to = c + i * ldc + 16 * v;
        _mm512_storeu_ps(to, accumulate ? _mm512_add_ps(sums[i][v], _mm512_loadu_ps(to)) : sums[i][v]);
      }
    }
  }
  TPU_AVX512 static TPU_INLINE auto Every(const float* from, int64_t stride) {
    return [=](int64_t p) TPU_AVX512 { return from + p * stride; };
  }
  TPU_AVX512 static TPU_INLINE auto Where(const float* from, const int32_t* offsets) {
    return [=](int64_t p) TPU_AVX512 { return from + offsets[p]; };
  }
  template <int kVectors>
  TPU_AVX512 static void Rows(int64_t depth, const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                              bool accumulate) {
    Multiply<kVectors>(depth, Every(a, 1), lda, Every(b, kCols), c, ldc, accumulate);
  }
  template <int kVectors>
  TPU_AVX512 static void Columns(int64_t depth, const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                                 bool accumulate) {
    Multiply<kVectors>(depth, Every(a, lda), 1, Every(b, kCols), c, ldc, accumulate);
  }
  // A's columns are where `depths` says, B's rows where `rows` does.
  template <int kVectors>
  TPU_AVX512 static void Gathered(int64_t depth, const float* a, int64_t row_stride, const int32_t* depths,
                                  const float* b, const int32_t* rows, float* c, int64_t ldc, bool accumulate) {
    Multiply<kVectors>(depth, Where(a, depths), row_stride, Where(b, rows), c, ldc, accumulate);
  }
};

// Some of 16 neighbours.
TPU_AVX512 inline __m512 Load(__mmask16 some, const float* from) { return _mm512_maskz_loadu_ps(some, from); }
TPU_AVX512 inline __m512 Load(__mmask16 some, const BFloat16* from) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, from)), 16));
}
TPU_AVX512 inline void Store(__mmask16 some, float* to, __m512 v) { _mm512_mask_storeu_ps(to, some, v); }
TPU_AVX512 inline void Store(__mmask16 some, BFloat16* to, __m512 v) {
  _mm256_mask_storeu_epi16(to, some, (__m256i)_mm512_cvtneps_pbh(v));
}

// Sums to their place, rounded to Out.
template <typename Out>
TPU_AVX512 void PutMasked(const float* sums, int64_t stride, int64_t rows, int64_t cols, Out* to, int64_t ldc,
                          bool add) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; j += 16) {
      const auto some = static_cast<__mmask16>((uint32_t{1} << std::min<int64_t>(16, cols - j)) - 1);
      const __m512 sum = Load(some, sums + i * stride + j);
      Out* const place = to + i * ldc + j;
      Store(some, place, add ? _mm512_add_ps(Load(some, place), sum) : sum);
    }
  }
}

// The same with what every machine has.
inline void Narrow(const float* from, size_t count, float* to) { std::memcpy(to, from, count * sizeof(float)); }
inline void Widen(const float* from, size_t count, float* to) { std::memcpy(to, from, count * sizeof(float)); }
template <typename Out>
void PutRows(const float* sums, int64_t stride, int64_t rows, int64_t cols, Out* to, int64_t ldc, bool add) {
  constexpr int64_t kSome = 32;
  for (int64_t i = 0; i < rows; ++i) {
    if (!add) {
      Narrow(sums + i * stride, static_cast<size_t>(cols), to + i * ldc);
      continue;
    }
    for (int64_t j = 0; j < cols; j += kSome) {
      const int64_t some = std::min(kSome, cols - j);
      Out* const place = to + i * ldc + j;
      float total[kSome];
      Widen(place, static_cast<size_t>(some), total);
      for (int64_t e = 0; e < some; ++e) total[e] += sums[i * stride + j + e];
      Narrow(total, static_cast<size_t>(some), place);
    }
  }
}

// Of whole blocks of T, of which a word has some: how rows of A are packed, and the product of a tile with them.
template <typename Kernel, typename T, int64_t kElementsOfWord>
struct Block : Kernel {
  using Element = T;
  using Kernel::kRows;
  static constexpr int64_t kElements = kElementsOfWord;
  static constexpr bool kInPlace = kElements * sizeof(T) == kWordBytes;  // words are where elements lie
  static constexpr int64_t kGrain = 1;                                   // of them that are multiplied at once
  static constexpr bool kGathers = true;                                 // rows of B from where they lie
  struct Scope {};                                                       // what a thread needs around its products

  static void PackLeft(const T* from, int64_t stride, bool along_depth, int64_t depth, int64_t rows, int64_t words,
                       float* out) {
    Pack<kRows, kElements>(from, stride, along_depth, depth, rows, words, out);
  }
  template <int kVectors>
  static void Packed(int64_t depth, const float* a, int64_t /*lda*/, const float* b, float* c, int64_t ldc,
                     bool accumulate) {
    Kernel::template Columns<kVectors>(depth, a, kRows, b, c, ldc, accumulate);
  }
  template <typename Out>
  static void Put(const float* sums, int64_t stride, int64_t rows, int64_t cols, Out* to, int64_t ldc, bool add) {
    if constexpr (kInPlace && Kernel::kLanes == 16) {
      PutMasked(sums, stride, rows, cols, to, ldc, add);
    } else {
      PutRows(sums, stride, rows, cols, to, ldc, add);
    }
  }
};
// Of f32, or of what is widened to it.
template <typename T>
using Avx2Block = Block<Avx2, T, 1>;
template <typename T>
using Avx512Block = Block<Avx512<float>, T, 1>;
using PairsBlock = Block<Avx512<BFloat16>, BFloat16, 2>;

// bf16 by the matrix unit (AMX), whose tiles are 16 rows of 16 words. Rows of A stay rows when they are packed.
struct AmxBlock {
  using Element = BFloat16;
  static constexpr int64_t kTile = 16;
  static constexpr int64_t kRows = 2 * kTile, kCols = 2 * kTile;  // four tiles of sums
  static constexpr int64_t kDepth = 192;                          // A's rows take half of the first level cache
  static constexpr int64_t kGatheredDepth = kDepth;
  static constexpr int64_t kElements = 2;
  static constexpr int64_t kGrain = kTile;
  static constexpr bool kGathers = false;

  // The intrinsics of tiles don't tell the compiler which memory they read and write.
  static TPU_INLINE void MemoryFence() { asm volatile("" : : : "memory"); }

  struct Scope {
    TPU_AMX Scope() {
      struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
      } config;
      for (int tile = 0; tile < 8; ++tile) {
        config.row_bytes[tile] = kTile * sizeof(float);
        config.rows[tile] = kTile;
      }
      const void* const published = &config;
      asm volatile("" : : "r"(published) : "memory");
      _tile_loadconfig(published);
    }
    TPU_AMX ~Scope() { _tile_release(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  static void PackLeft(const BFloat16* from, int64_t stride, bool along_depth, int64_t depth, int64_t rows,
                       int64_t words, float* out) {
    if (along_depth) {
      for (int64_t i = 0; i < kRows; ++i) {
        const int64_t bytes = i < rows ? depth * static_cast<int64_t>(sizeof(BFloat16)) : 0;
        char* const to = reinterpret_cast<char*>(out + i * words);
        if (bytes > 0) std::memcpy(to, from + i * stride, static_cast<size_t>(bytes));
        std::memset(to + bytes, 0, static_cast<size_t>(words * int64_t{sizeof(float)} - bytes));
      }
      return;
    }
    alignas(64) float columns[kTile * kRows];
    for (int64_t p = 0; p < words; p += kTile) {
      const int64_t left = std::max<int64_t>(0, depth - 2 * p);
      Pack<kRows, 2>(from + 2 * p * stride, stride, false, std::min(2 * kTile, left), rows, kTile, columns);
      TransposeBlock(columns, kRows, kTile, kRows, out + p, words);
    }
  }
  template <typename Out>
  static void Put(const float* sums, int64_t stride, int64_t rows, int64_t cols, Out* to, int64_t ldc, bool add) {
    PutMasked(sums, stride, rows, cols, to, ldc, add);
  }
  // B passes through the first level cache, in which A's rows are to stay.
  TPU_AMX static void Rows(int64_t depth, const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                           bool accumulate) {
    const auto row_bytes = static_cast<size_t>(ldc) * sizeof(float),
               left_bytes = static_cast<size_t>(lda) * sizeof(float);
    constexpr size_t kPanelBytes = kCols * sizeof(float);
    MemoryFence();
    if (accumulate) {
      _tile_loadd(0, c, row_bytes);
      _tile_loadd(1, c + kTile, row_bytes);
      _tile_loadd(2, c + kTile * ldc, row_bytes);
      _tile_loadd(3, c + kTile * ldc + kTile, row_bytes);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t p = 0; p < depth; p += kTile) {
      _tile_loadd(4, a + p, left_bytes);
      _tile_stream_loadd(6, b + p * kCols, kPanelBytes);
      _tile_stream_loadd(7, b + p * kCols + kTile, kPanelBytes);
      _tile_loadd(5, a + kTile * lda + p, left_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, row_bytes);
    _tile_stored(1, c + kTile, row_bytes);
    _tile_stored(2, c + kTile * ldc, row_bytes);
    _tile_stored(3, c + kTile * ldc + kTile, row_bytes);
    MemoryFence();
  }
};

// Sums to columns that lie anywhere.
TPU_AVX2 inline void PutGathered(const float* sums, int64_t stride, int64_t rows, const int32_t* cols, int64_t width,
                                 float* to, int64_t ldc, bool add) {
  for (int64_t j = 0; j < width;) {
    if (j + 8 <= width && Consecutive(cols + j, 8)) {
      for (int64_t i = 0; i < rows; ++i) {
        float* const place = to + i * ldc + cols[j];
        const __m256 sum = _mm256_loadu_ps(sums + i * stride + j);
        _mm256_storeu_ps(place, add ? _mm256_add_ps(_mm256_loadu_ps(place), sum) : sum);
      }
      j += 8;
      continue;
    }
    for (int64_t i = 0; i < rows; ++i) {
      float& place = to[i * ldc + cols[j]];
      place = add ? place + sums[i * stride + j] : sums[i * stride + j];
    }
    ++j;
  }
}

}  // namespace tpu::host

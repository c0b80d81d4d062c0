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

namespace tiles {
#define TPU_KERNELS "runtime/host/panel_tile_kernels.h"
#include "runtime/host/each_instruction_set.h"
}  // namespace tiles

// Sums to their place, rounded to Out.
template <typename Out>
TPU_AVX512 void PutMasked(const float* sums, int64_t stride, int64_t rows, int64_t cols, Out* to, int64_t ldc,
                          bool add) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; j += avx512::kLanes) {
      const __m512 sum = avx512::LoadFirst(sums + i * stride + j, cols - j);
      Out* const place = to + i * ldc + j;
      avx512::StoreFirst(place, cols - j, add ? avx512::LoadFirst(place, cols - j) + sum : sum);
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
// Of f32, or of what is widened to it; of pairs of bf16.
template <typename T>
using Avx2Block = Block<tiles::avx2::Tile<avx2::AddProduct>, T, 1>;
template <typename T>
using Avx512Block = Block<tiles::avx512::Tile<avx512::AddProduct>, T, 1>;
using PairsBlock = Block<tiles::avx512::Tile<avx512::AddPairProducts>, BFloat16, 2>;

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

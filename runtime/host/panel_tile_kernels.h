// The product of a tile, summed in registers. Included by panel_kernels.h for each instruction set
// (each_instruction_set.h).

constexpr int kSteps = kLanes == 16 ? 4 : 2;  // of the depth, unrolled

// c[kRows x kCols] (+)= sum over p of a[i * row_stride + p * depth_stride] * b[p * kCols + j], of as many columns as
// kVectors registers have; kAddProduct multiplies words. Rows and Columns are the same where strides are known, and so
// the addressing.
template <Lanes (*kAddProduct)(Lanes, Lanes, Lanes)>
struct Tile {
  static constexpr int64_t kLanes = sizeof(Lanes) / sizeof(float);
  static constexpr int64_t kRows = kLanes == 16 ? 8 : 4;          // by
  static constexpr int64_t kCols = kLanes == 16 ? 32 : 24;        // are 16 registers of sums, or 12
  static constexpr int64_t kDepth = kLanes == 16 ? 512 : 256;     // words of a pass
  static constexpr int64_t kGatheredDepth = kDepth + kDepth / 8;  // the same where B is gathered

  // Column p of A's rows begins at left(p), row p of B is at right(p).
  template <int kVectors, typename Left, typename Right>
  TPU_LANES static TPU_INLINE void Multiply(int64_t depth, const Left& left, int64_t row_stride, const Right& right,
                                            float* c, int64_t ldc, bool accumulate) {
    Lanes sums[kRows][kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      Prefetch(c + i * ldc);
      Prefetch(c + i * ldc + kVectors * kLanes - 1);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sums[i][v] = Zeros();
    }
#pragma GCC unroll kSteps
    for (int64_t p = 0; p < depth; ++p) {
      const float* const a = left(p);
      const float* const b = right(p);
      Lanes row[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) row[v] = Load(b + v * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const Lanes x = Every(a[i * row_stride]);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) sums[i][v] = kAddProduct(sums[i][v], x, row[v]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        float* const to = c + i * ldc + v * kLanes;
        Store(to, accumulate ? sums[i][v] + Load(to) : sums[i][v]);
      }
    }
  }
  TPU_LANES static TPU_INLINE auto Strided(const float* from, int64_t stride) {
    return [=](int64_t p) TPU_LANES { return from + p * stride; };
  }
  TPU_LANES static TPU_INLINE auto Listed(const float* from, const int32_t* offsets) {
    return [=](int64_t p) TPU_LANES { return from + offsets[p]; };
  }
  template <int kVectors>
  TPU_LANES static void Rows(int64_t depth, const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                             bool accumulate) {
    Multiply<kVectors>(depth, Strided(a, 1), lda, Strided(b, kCols), c, ldc, accumulate);
  }
  template <int kVectors>
  TPU_LANES static void Columns(int64_t depth, const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                                bool accumulate) {
    Multiply<kVectors>(depth, Strided(a, lda), 1, Strided(b, kCols), c, ldc, accumulate);
  }
  // A's columns are where `depths` says, B's rows where `rows` does.
  template <int kVectors>
  TPU_LANES static void Gathered(int64_t depth, const float* a, int64_t row_stride, const int32_t* depths,
                                 const float* b, const int32_t* rows, float* c, int64_t ldc, bool accumulate) {
    Multiply<kVectors>(depth, Listed(a, depths), row_stride, Listed(b, rows), c, ldc, accumulate);
  }
};

#include "runtime/host/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <complex>
#include <random>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/host/matrix_library.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/parallel.h"
#include "runtime/machine.h"
#include "tests/unit/runtime/plain_sgemm.h"

namespace tpu::host {
namespace {

struct Half {  // bf16 by its bits
  uint16_t bits = 0;
  Half() = default;
  Half(float f) : bits(static_cast<uint16_t>((std::bit_cast<uint32_t>(f) + 0x8000) >> 16)) {}
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

template <typename T>
constexpr DType kDType = DType::kFloat32;
template <>
constexpr DType kDType<double> = DType::kFloat64;
template <>
constexpr DType kDType<Half> = DType::kBFloat16;
template <>
constexpr DType kDType<_Float16> = DType::kFloat16;
template <>
constexpr DType kDType<int32_t> = DType::kInt32;
template <>
constexpr DType kDType<int64_t> = DType::kInt64;
template <>
constexpr DType kDType<uint8_t> = DType::kUInt8;
template <>
constexpr DType kDType<std::complex<float>> = DType::kComplex64;

template <typename T>
std::vector<T> RandomSmallIntegers(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> values(n);
  // Exactly representable, and so are all sums of their products below: results can be compared for equality.
  for (T& v : values) v = static_cast<T>(static_cast<int>(random() % 3) - (std::is_unsigned_v<T> ? 0 : 1));
  return values;
}

template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, std::complex<float>>, std::complex<double>, double>;

template <typename T>
std::vector<Wide<T>> Packed(const T* matrix, int64_t rows, int64_t cols, int64_t ld, bool transposed) {
  std::vector<Wide<T>> packed(static_cast<size_t>(rows * cols));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      packed[i * cols + j] = static_cast<Wide<T>>(matrix[transposed ? j * ld + i : i * ld + j]);
    }
  }
  return packed;
}

// Adds the product of two packed matrices to a third. A sanitizer would follow each of thousands of millions of reads.
template <typename T>
__attribute__((no_sanitize("thread"))) void AddProduct(int64_t m, int64_t n, int64_t k, const T* a, const T* b, T* c) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      for (int64_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + p] * b[p * n + j];
    }
  }
}

// A product with padding and offsets everywhere (or nowhere), against its definition.
template <typename T, typename Out = T>
void Compare(GemmStep g, bool padded = true) {
  g.dtype = kDType<T>;
  g.out_dtype = kDType<Out>;
  const int64_t rows_a = g.trans_a ? g.k : g.m, cols_a = g.trans_a ? g.m : g.k;
  const int64_t rows_b = g.trans_b ? g.n : g.k, cols_b = g.trans_b ? g.k : g.n;
  g.lda = cols_a, g.ldb = cols_b, g.ldc = g.n;
  if (padded) {
    g.lda += 3, g.ldb += 1, g.ldc += 2;
    g.offset_a = 5, g.offset_b = 1, g.offset_c = 2;
  }
  int64_t batches = 1;
  g.stride_a.resize(g.batch.size()), g.stride_b.resize(g.batch.size()), g.stride_c.resize(g.batch.size());
  for (size_t d = g.batch.size(); d-- > 0;) {
    g.stride_a[d] = d == 0 ? 0 : rows_a * g.lda * batches;  // the outermost dimension repeats A
    g.stride_b[d] = rows_b * g.ldb * batches;
    g.stride_c[d] = (g.m * g.ldc + 4) * batches;
    batches *= g.batch[d];
  }
  const auto a = RandomSmallIntegers<T>(static_cast<size_t>(g.offset_a + rows_a * g.lda * batches + 8), 1);
  const auto b = RandomSmallIntegers<T>(static_cast<size_t>(g.offset_b + rows_b * g.ldb * batches + 8), 2);
  auto c = RandomSmallIntegers<Out>(static_cast<size_t>(g.offset_c + (g.m * g.ldc + 4) * batches + 8), 3);
  auto expected = c;
  for (int64_t batch = 0; batch < batches; ++batch) {
    int64_t at_a = g.offset_a, at_b = g.offset_b, at_c = g.offset_c, index = batch;
    for (size_t d = g.batch.size(); d-- > 0; index /= g.batch[d]) {
      at_a += index % g.batch[d] * g.stride_a[d];
      at_b += index % g.batch[d] * g.stride_b[d];
      at_c += index % g.batch[d] * g.stride_c[d];
    }
    const auto wide_a = Packed(a.data() + at_a, g.m, g.k, g.lda, g.trans_a);
    const auto wide_b = Packed(b.data() + at_b, g.k, g.n, g.ldb, g.trans_b);
    auto sums = Packed(expected.data() + at_c, g.m, g.n, g.ldc, false);
    if (!g.accumulate) std::fill(sums.begin(), sums.end(), Wide<T>{});
    AddProduct(g.m, g.n, g.k, wide_a.data(), wide_b.data(), sums.data());
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) expected[at_c + i * g.ldc + j] = static_cast<Out>(sums[i * g.n + j]);
    }
  }
  auto by_rows = c;
  RunGemm(g, a.data(), b.data(), c.data());
  const int64_t rows = RowsOf(g);
  for (int64_t i = 0; i < 3; ++i) {  // in parts that begin and end within matrices
    RunGemmRows(g, a.data(), b.data(), by_rows.data(), rows * i / 3, rows * (i + 1) / 3);
  }
  for (size_t i = 0; i < c.size(); ++i) ASSERT_EQ(by_rows[i], c[i]) << "element " << i << " by rows";
  for (size_t i = 0; i < c.size(); ++i) {
    ASSERT_EQ(c[i], expected[i]) << "element " << i << " of " << g.m << "x" << g.n << "x" << g.k << " ta " << g.trans_a
                                 << " tb " << g.trans_b << " acc " << g.accumulate << " batches " << batches;
  }
}

template <typename T, typename Out = T>
void CompareMany() {
  const int64_t shapes[][3] = {{1, 1, 1},    {3, 5, 7},   {1, 300, 40}, {200, 1, 33}, {1, 70, 1},   {65, 33, 0},
                               {64, 64, 20}, {70, 7, 50}, {33, 10, 3},  {64, 32, 32}, {20, 32, 40}, {33, 56, 64},
                               {19, 88, 33}, {9, 16, 12}, {24, 8, 100}, {70, 8, 200}};
  for (const auto& [m, n, k] : shapes) {
    for (int flags = 0; flags < 8; ++flags) {
      GemmStep g;
      g.m = m, g.n = n, g.k = k;
      g.trans_a = flags & 1, g.trans_b = flags & 2, g.accumulate = flags & 4;
      Compare<T, Out>(g);
      g.batch = {2, 3};
      Compare<T, Out>(g);
    }
  }
}

TEST(Gemm, Float32) { CompareMany<float>(); }
TEST(Gemm, Float64) { CompareMany<double>(); }
TEST(Gemm, BFloat16) { CompareMany<Half>(); }
TEST(Gemm, BFloat16IntoFloat32) { CompareMany<Half, float>(); }
TEST(Gemm, Float16) { CompareMany<_Float16>(); }
TEST(Gemm, Int32) { CompareMany<int32_t>(); }
TEST(Gemm, Int64) { CompareMany<int64_t>(); }
TEST(Gemm, UInt8) { CompareMany<uint8_t>(); }
TEST(Gemm, Complex64) { CompareMany<std::complex<float>>(); }

TEST(Gemm, LargeEnoughToBeCut) {
  for (bool trans : {false, true}) {
    GemmStep g{.trans_a = trans, .trans_b = !trans, .m = 700, .n = 130, .k = 520};
    Compare<float>(g);
    Compare<Half, float>(g);
    g = {.trans_b = trans, .m = 3, .n = 4000, .k = 300};
    Compare<float>(g);
    g = {.trans_b = trans, .m = 1, .n = 5000, .k = 700};
    Compare<float>(g);
    Compare<Half, float>(g);
    g = {.trans_a = trans, .m = 5000, .n = 1, .k = 700};
    Compare<float>(g);
    g = {.trans_b = trans, .m = 40, .n = 40, .k = 40, .batch = {3, 40}};
    Compare<float>(g);
  }
}

TEST(Gemm, FewRows) {
  for (int64_t m = 1; m <= 34; ++m) {
    GemmStep g{.trans_a = m % 3 == 0, .trans_b = true, .accumulate = m % 4 == 1, .m = m, .n = 262 + m % 7, .k = 21 + m};
    Compare<float>(g);
    Compare<Half>(g);
    Compare<Half, float>(g);
    Compare<_Float16>(g);
    g.n = 1 + m % 3;
    Compare<float>(g);
  }
}

// Some columns more than are packed at once, several passes, blocks that are not full; with as many rows as it takes.
TEST(Gemm, ThreadsShareLargeProducts) {
  const int64_t rows = 192 * NumThreads() + 11, rows_of_sums = 768 * NumThreads() + 11;
  for (int flags = 0; flags < 4; ++flags) {
    GemmStep g{.trans_a = (flags & 1) != 0, .trans_b = (flags & 2) != 0, .accumulate = flags == 1 || flags == 2};
    g.method = Method::kPanels;
    g.m = rows, g.n = 610, g.k = 520;
    Compare<float>(g);
    Compare<Half, float>(g);
    g.n = 24, g.k = 1030;
    Compare<float>(g);
    g.batch = {2};
    Compare<float>(g);
    g.batch = {}, g.m = rows_of_sums, g.n = 40, g.k = 1101;
    Compare<Half>(g);
    Compare<_Float16>(g);
  }
}

// Whoever computes which block, and beside other products.
TEST(Gemm, SharedProductsHaveTheSameBits) {
  GemmStep g{
      .method = Method::kPanels, .m = 192 * NumThreads() + 5, .n = 80, .k = 700, .lda = 700, .ldb = 80, .ldc = 80};
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> a(static_cast<size_t>(g.m * g.k)), b(static_cast<size_t>(g.k * g.n));
  for (float& x : a) x = normal(random);
  for (float& x : b) x = normal(random);
  std::vector<float> alone(static_cast<size_t>(g.m * g.n));
  RunGemmRows(g, a.data(), b.data(), alone.data(), 0, g.m);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 4; ++i) {
        std::vector<float> shared(alone.size());
        RunGemm(g, a.data(), b.data(), shared.data());
        EXPECT_EQ(shared, alone);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// Several passes and blocks in every direction, none of them full at its end.
void CompareLargerThanABlock(bool accumulate) {
  for (int flags = 0; flags < 4; ++flags) {
    GemmStep g{.trans_a = (flags & 1) != 0, .trans_b = (flags & 2) != 0, .accumulate = accumulate};
    g.m = 803, g.n = 35, g.k = 523;
    Compare<float>(g);
    g.k = 1101;
    Compare<Half>(g);
    Compare<Half, float>(g);
    g.m = 18, g.n = 1571;
    Compare<float>(g);
    Compare<Half>(g);
    for (int64_t k : {1536, 1538}) {  // rows of whole tiles, of whole words
      g.k = k;
      Compare<Half>(g, /*padded=*/false);
      Compare<Half, float>(g, /*padded=*/false);
    }
    g.m = 40, g.n = 83, g.k = 4602;
    Compare<Half>(g);
    Compare<Half, float>(g);
  }
}

TEST(Gemm, LargerThanABlock) { CompareLargerThanABlock(false); }
TEST(Gemm, AddsToMoreThanABlock) { CompareLargerThanABlock(true); }

TEST(Gemm, NonFiniteElementsStayInTheirRowAndColumn) {
  GemmStep g{.m = 20, .n = 45, .k = 33, .lda = 33, .ldb = 45, .ldc = 45};
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    g.dtype = dtype, g.out_dtype = DType::kFloat32;
    std::vector<float> a(20 * 33, 1), b(33 * 45, 1), c(20 * 45);
    std::vector<Half> narrow_a(a.begin(), a.end()), narrow_b(b.begin(), b.end());
    a[19 * 33 + 32] = INFINITY, b[44] = NAN;
    narrow_a[19 * 33 + 32].bits = 0x7f80, narrow_b[44].bits = 0x7fc0;
    const bool narrow = dtype == DType::kBFloat16;
    RunGemm(g, narrow ? static_cast<const void*>(narrow_a.data()) : a.data(),
            narrow ? static_cast<const void*>(narrow_b.data()) : b.data(), c.data());
    for (size_t i = 0; i < c.size(); ++i) {
      if (i % 45 == 44) {
        EXPECT_TRUE(std::isnan(c[i])) << i;
      } else {
        EXPECT_EQ(c[i], i / 45 == 19 ? INFINITY : 33) << i;
      }
    }
  }
}

// What a triangle leaves out changes nothing that may be looked at, and is left out. Two matrices.
template <typename T>
void CompareTriangle(GemmStep g) {
  g.dtype = g.out_dtype = kDType<T>;
  const int64_t m = g.m, n = g.n, k = g.k;
  g.lda = g.trans_a ? m : k, g.ldb = g.trans_b ? k : n, g.ldc = n;
  g.batch = {2}, g.stride_a = {m * k}, g.stride_b = {0}, g.stride_c = {m * n};
  auto a = RandomSmallIntegers<T>(static_cast<size_t>(2 * m * k), 1);
  const auto b = RandomSmallIntegers<T>(static_cast<size_t>(k * n), 2);
  for (int64_t i = 0; i < 2 * m; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      const int64_t row = i % m, matrix = i / m * m * k;
      const bool zero =
          (g.triangle == Triangle::kLhsLower && p > row) || (g.triangle == Triangle::kLhsUpper && p < row);
      if (zero) a[static_cast<size_t>(matrix + (g.trans_a ? p * m + row : row * k + p))] = 0;
    }
  }
  std::vector<T> expected(static_cast<size_t>(2 * m * n), -1000), c = expected;
  RunGemm(g, a.data(), b.data(), c.data());
  const Triangle triangle = std::exchange(g.triangle, Triangle::kNone);
  RunGemm(g, a.data(), b.data(), expected.data());
  for (int64_t i = 0; i < 2 * m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      if (triangle == Triangle::kResultLower && j > i % m) continue;
      ASSERT_EQ(c[static_cast<size_t>(i * n + j)], expected[static_cast<size_t>(i * n + j)])
          << "element " << i << ", " << j << " of " << m << "x" << n << "x" << k << " ta " << g.trans_a << " tb "
          << g.trans_b << " acc " << g.accumulate << " triangle " << static_cast<int>(triangle);
    }
  }
  const bool untouched = c[static_cast<size_t>(n - 1)] == -1000;  // first row, last column
  if (g.accumulate) return;
  if (triangle != Triangle::kResultLower) {
    EXPECT_FALSE(untouched);
  } else if (n > 64) {
    EXPECT_TRUE(untouched);
  }
}

// The depth in three parts, the last two of other sizes.
TEST(Gemm, PartsOfTheDepthAddUp) {
  for (Triangle triangle : {Triangle::kNone, Triangle::kLhsLower, Triangle::kLhsUpper}) {
    for (int64_t m : {100, 40}) {
      GemmStep g;
      g.m = m, g.n = 30, g.k = 70, g.trans_a = true;
      g.lda = m, g.ldb = g.ldc = 30;
      g.batch = {2}, g.stride_a = {m * 70}, g.stride_b = {70 * 30}, g.stride_c = {m * 30};
      auto a = RandomSmallIntegers<float>(static_cast<size_t>(2 * m * 70), 1);
      const auto b = RandomSmallIntegers<float>(2 * 70 * 30, 2);
      for (size_t i = 0; i < a.size(); ++i) {
        const int64_t row = static_cast<int64_t>(i) % m, depth = static_cast<int64_t>(i) / m % 70;
        if (triangle == Triangle::kLhsLower ? depth > row : triangle == Triangle::kLhsUpper && depth < row) a[i] = 0;
      }
      std::vector<float> expected(static_cast<size_t>(2 * m * 30)), c(expected.size(), NAN);
      RunGemm(g, a.data(), b.data(), expected.data());
      g.triangle = triangle;
      for (int64_t begin : {0, 70}) {
        RunGemmDepth(g, a.data(), b.data(), c.data(), begin, begin + 32);
        RunGemmDepth(g, a.data(), b.data(), c.data(), begin + 32, begin + 50);
        RunGemmDepth(g, a.data(), b.data(), c.data(), begin + 50, begin + 70);
      }
      ASSERT_EQ(c, expected) << "triangle " << static_cast<int>(triangle) << " of " << m;
    }
  }
}

// Equal numbers, whose sum is rounded the same way again and again.
TEST(Gemm, LongSumsOfATriangleAreAccurate) {
  GemmStep g;
  g.m = 16, g.n = 32, g.k = 10000, g.trans_a = true, g.triangle = Triangle::kLhsUpper;
  g.lda = g.m, g.ldb = g.ldc = g.n;
  std::vector<float> a(static_cast<size_t>(g.m * g.k), 0.1f), b(static_cast<size_t>(g.n * g.k), 0.1f), c(512);
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t p = 0; p < i; ++p) a[p * g.lda + i] = 0;
  }
  RunGemm(g, a.data(), b.data(), c.data());
  for (int64_t i = 0; i < g.m; ++i) {
    const double sum = static_cast<double>(g.k - i) * 0.1f * 0.1f;
    for (int64_t j = 0; j < g.n; ++j) ASSERT_NEAR(c[i * g.n + j], sum, 1e-5 * sum) << i << " " << j;
  }
}

template <typename T>
void LongSumsOfFewRows() {
  constexpr int64_t kDepth = 1000003;
  for (const auto& [m, n] :
       std::initializer_list<std::pair<int64_t, int64_t>>{{1, 1}, {3, 1}, {1, 3}, {4, 4}, {9, 1}}) {
    for (int flags = 0; flags < 4; ++flags) {
      GemmStep g{.dtype = kDType<T>, .out_dtype = DType::kFloat32, .m = m, .n = n, .k = kDepth};
      g.trans_a = (flags & 1) != 0, g.trans_b = (flags & 2) != 0;
      g.lda = g.trans_a ? m : kDepth, g.ldb = g.trans_b ? kDepth : n, g.ldc = n;
      const std::vector<T> a(static_cast<size_t>(m * kDepth), T{0.1f}), b(static_cast<size_t>(n * kDepth), T{0.1f});
      std::vector<float> c(static_cast<size_t>(m * n));
      RunGemm(g, a.data(), b.data(), c.data());
      const double each = static_cast<double>(static_cast<float>(a[0])),
                   sum = static_cast<double>(kDepth) * each * each;
      for (float found : c) ASSERT_NEAR(found, sum, 3e-5 * sum) << m << " " << n << " " << flags;
    }
  }
}

TEST(Gemm, LongSumsOfFewRowsAreAccurate) {
  LongSumsOfFewRows<float>();
  LongSumsOfFewRows<Half>();
  LongSumsOfFewRows<_Float16>();
}

TEST(Gemm, Triangles) {
  const int64_t shapes[][3] = {{256, 256, 64}, {200, 130, 150}, {100, 300, 250}, {300, 70, 90}, {7, 16, 5},
                               {800, 20, 400}, {800, 400, 20},  {64, 64, 64},    {40, 56, 72},  {50, 40, 32}};
  for (const auto& [m, n, k] : shapes) {
    for (int flags = 0; flags < 8; ++flags) {
      for (Triangle triangle : {Triangle::kResultLower, Triangle::kLhsLower, Triangle::kLhsUpper}) {
        GemmStep g;
        g.m = m, g.n = n, g.k = k, g.triangle = triangle;
        g.trans_a = flags & 1, g.trans_b = flags & 2, g.accumulate = flags & 4;
        CompareTriangle<float>(g);
        if (m < 300) CompareTriangle<double>(g);
      }
    }
  }
}

// Checks what it is given, counts itself.
std::atomic<int> library_calls{0};
void CheckedSgemm(const char* ta, const char* tb, const int* m, const int* n, const int* k, const float* alpha,
                  const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
                  const int* ldc) {
  ++library_calls;
  EXPECT_GE(*lda, *ta == 'N' ? *m : *k);
  EXPECT_GE(*ldb, *tb == 'N' ? *k : *n);
  EXPECT_GE(*ldc, *m);
  PlainSgemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

TEST(Gemm, GoesThroughTheLibraryWhenThereIsOne) {
  SetMatrixLibrary({.name = "checked", .sgemm = CheckedSgemm});
  library_calls = 0;
  CompareMany<float>();
  CompareMany<Half>();
  SetMatrixLibrary({});
  EXPECT_GT(library_calls, 100);
}

TEST(Gemm, FewColumnsOfWholeVectorsAreSummedByPanels) {
  if (!PanelsFirst() || UsableInstructions().avx512) GTEST_SKIP() << "panels of 32 columns, or the library first";
  SetMatrixLibrary({.name = "checked", .sgemm = CheckedSgemm});
  library_calls = 0;
  Compare<float>({.m = 256, .n = 8, .k = 1024});
  Compare<float>({.trans_b = true, .m = 128, .n = 1024, .k = 8});
  Compare<float>({.m = 24, .n = 16, .k = 16, .batch = {20}});
  SetMatrixLibrary({});
  EXPECT_EQ(library_calls, 0);
}

}  // namespace
}  // namespace tpu::host

// One block of a matrix product on one thread: few rows by skinny.cc, panels by panel_gemm.cc, else by the matrix
// library where it has the type, for 16-bit floats by converting pieces to f32, and by plain loops for the rest.
#include <algorithm>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "runtime/host/gemm.h"
#include "runtime/host/matrix_library.h"
#include "runtime/host/narrow_float.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/skinny.h"

namespace tpu::host {
namespace {

// Arithmetic of a plain loop: integers wrap around, so in their unsigned counterpart.
template <typename T>
struct Arithmetic {
  using Type = T;
};
template <typename T>
  requires std::is_integral_v<T>
struct Arithmetic<T> {
  using Type = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;
};

// Row of C by row: with B stored untransposed, as sums of B's rows (vectorises over n); else as dot products.
template <typename T>
void LoopBlock(const GemmBlock& g) {
  using W = typename Arithmetic<T>::Type;
  const T* a = static_cast<const T*>(g.a);
  const T* b = static_cast<const T*>(g.b);
  constexpr int64_t kColumns = 256;
  W sums[kColumns];
  for (int64_t i = 0; i < g.m; ++i) {
    T* c = static_cast<T*>(g.c) + i * g.ldc;
    for (int64_t j0 = 0; j0 < g.n; j0 += kColumns) {
      const int64_t width = std::min(kColumns, g.n - j0);
      for (int64_t j = 0; j < width; ++j) sums[j] = g.accumulate ? static_cast<W>(c[j0 + j]) : W{};
      for (int64_t p = 0; p < g.k; ++p) {
        const W x = static_cast<W>(g.trans_a ? a[p * g.lda + i] : a[i * g.lda + p]);
        if (g.trans_b) {
          for (int64_t j = 0; j < width; ++j) sums[j] += x * static_cast<W>(b[(j0 + j) * g.ldb + p]);
        } else {
          for (int64_t j = 0; j < width; ++j) sums[j] += x * static_cast<W>(b[p * g.ldb + j0 + j]);
        }
      }
      for (int64_t j = 0; j < width; ++j) c[j0 + j] = static_cast<T>(sums[j]);
    }
  }
}

template <>
void LoopBlock<bool>(const GemmBlock& g) {
  const uint8_t* a = static_cast<const uint8_t*>(g.a);
  const uint8_t* b = static_cast<const uint8_t*>(g.b);
  for (int64_t i = 0; i < g.m; ++i) {
    uint8_t* c = static_cast<uint8_t*>(g.c) + i * g.ldc;
    for (int64_t j = 0; j < g.n; ++j) {
      bool any = g.accumulate && c[j] != 0;
      for (int64_t p = 0; p < g.k && !any; ++p) {
        any = a[g.trans_a ? p * g.lda + i : i * g.lda + p] != 0 && b[g.trans_b ? j * g.ldb + p : p * g.ldb + j] != 0;
      }
      c[j] = any ? 1 : 0;
    }
  }
}

bool FitsLibrary(const GemmBlock& g) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  return g.m <= kMost && g.n <= kMost && g.k <= kMost && g.lda <= kMost && g.ldb <= kMost && g.ldc <= kMost;
}

// Column-major C^T = op(B)^T op(A)^T is row-major C = op(A) op(B).
template <typename T, typename Function>
void LibraryBlock(const GemmBlock& g, Function function) {
  const int m = static_cast<int>(g.m), n = static_cast<int>(g.n), k = static_cast<int>(g.k);
  // A single row's stride may be anything; the library wants it to cover the row.
  const int lda = std::max<int>({1, static_cast<int>(g.lda), g.trans_a ? m : k});
  const int ldb = std::max<int>({1, static_cast<int>(g.ldb), g.trans_b ? k : n});
  const int ldc = std::max<int>({1, static_cast<int>(g.ldc), n});
  const T one = 1, beta = g.accumulate ? 1 : 0;
  const MatrixLibrary& library = GetMatrixLibrary();
  const int former = library.set_threads_on_this_thread != nullptr ? library.set_threads_on_this_thread(1) : 0;
  function(g.trans_b ? "T" : "N", g.trans_a ? "T" : "N", &n, &m, &k, &one, static_cast<const T*>(g.b), &ldb,
           static_cast<const T*>(g.a), &lda, &beta, static_cast<T*>(g.c), &ldc);
  if (library.set_threads_on_this_thread != nullptr) library.set_threads_on_this_thread(former);
}

// The library may take long sums of few elements as they are: here they are those of passes, added up in f64.
void LibraryPasses(const GemmBlock& g, SgemmFn sgemm) {
  constexpr int64_t kDepth = 1 << 14, kFewElements = 1 << 12;
  if (g.k <= kDepth || (g.m * g.n > kFewElements && std::min(g.m, g.n) > 1)) return LibraryBlock<float>(g, sgemm);
  std::vector<float> sums(static_cast<size_t>(g.m * g.n));
  std::vector<double> totals(sums.size());
  GemmBlock pass = g;
  pass.accumulate = false, pass.c = sums.data(), pass.ldc = g.n;
  for (int64_t p = 0; p < g.k; p += kDepth) {
    pass.k = std::min(kDepth, g.k - p);
    pass.a = static_cast<const float*>(g.a) + (g.trans_a ? p * g.lda : p);
    pass.b = static_cast<const float*>(g.b) + (g.trans_b ? p : p * g.ldb);
    LibraryBlock<float>(pass, sgemm);
    for (size_t i = 0; i < sums.size(); ++i) totals[i] += sums[i];
  }
  float* const c = static_cast<float*>(g.c);
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      float& to = c[i * g.ldc + j];
      to = static_cast<float>(totals[static_cast<size_t>(i * g.n + j)] + (g.accumulate ? to : 0));
    }
  }
}

void FloatBlock(const GemmBlock& g) {
  const SgemmFn sgemm = GetMatrixLibrary().sgemm;
  sgemm != nullptr&& FitsLibrary(g) ? LibraryPasses(g, sgemm) : LoopBlock<float>(g);
}

void DoubleBlock(const GemmBlock& g) {
  const DgemmFn dgemm = GetMatrixLibrary().dgemm;
  dgemm != nullptr&& FitsLibrary(g) ? LibraryBlock<double>(g, dgemm) : LoopBlock<double>(g);
}

// rows x cols of a matrix with row stride ld, as f32 with row stride cols.
template <typename T>
void WidenBlock(const void* from, int64_t ld, int64_t rows, int64_t cols, float* to) {
  for (int64_t i = 0; i < rows; ++i) {
    Widen(static_cast<const T*>(from) + i * ld, static_cast<size_t>(cols), to + i * cols);
  }
}

// 16-bit floats: pieces of A and B are widened to f32 and multiplied there, sums are kept in f32 until the last.
template <typename T>
void WidenedBlock(const GemmBlock& g) {
  constexpr int64_t kRows = 256, kCols = 512, kDepth = 512;
  thread_local std::vector<float> scratch;
  scratch.resize(kRows * kDepth + kDepth * kCols + kRows * kCols);
  float* wide_a = scratch.data();
  float* wide_b = wide_a + kRows * kDepth;
  float* wide_c = wide_b + kDepth * kCols;
  const bool wide_out = g.out_dtype == DType::kFloat32;
  const T* a = static_cast<const T*>(g.a);
  const T* b = static_cast<const T*>(g.b);
  for (int64_t j = 0; j < g.n; j += kCols) {
    const int64_t cols = std::min(kCols, g.n - j);
    for (int64_t i = 0; i < g.m; i += kRows) {
      const int64_t rows = std::min(kRows, g.m - i);
      T* narrow = static_cast<T*>(g.c) + i * g.ldc + j;
      float* c = wide_out ? static_cast<float*>(g.c) + i * g.ldc + j : wide_c;
      const int64_t ldc = wide_out ? g.ldc : cols;
      if (!wide_out && g.accumulate) WidenBlock<T>(narrow, g.ldc, rows, cols, c);
      for (int64_t p = 0; p < g.k; p += kDepth) {
        const int64_t depth = std::min(kDepth, g.k - p);
        if (g.trans_a) {
          WidenBlock<T>(a + p * g.lda + i, g.lda, depth, rows, wide_a);
        } else {
          WidenBlock<T>(a + i * g.lda + p, g.lda, rows, depth, wide_a);
        }
        if (g.trans_b) {
          WidenBlock<T>(b + j * g.ldb + p, g.ldb, cols, depth, wide_b);
        } else {
          WidenBlock<T>(b + p * g.ldb + j, g.ldb, depth, cols, wide_b);
        }
        MultiplyBlock({.dtype = DType::kFloat32,
                       .out_dtype = DType::kFloat32,
                       .trans_a = g.trans_a,
                       .trans_b = g.trans_b,
                       .accumulate = g.accumulate || p > 0,
                       .m = rows,
                       .n = cols,
                       .k = depth,
                       .lda = g.trans_a ? rows : depth,
                       .ldb = g.trans_b ? depth : cols,
                       .ldc = ldc,
                       .a = wide_a,
                       .b = wide_b,
                       .c = c});
      }
      if (wide_out) continue;
      for (int64_t r = 0; r < rows; ++r) {
        Narrow(c + r * cols, static_cast<size_t>(cols), narrow + r * g.ldc);
      }
    }
  }
}

}  // namespace

void MultiplyBlock(const GemmBlock& g) {
  if (g.k == 0) {
    if (g.accumulate) return;
    const size_t row_bytes = static_cast<size_t>(g.n) * SizeOf(g.out_dtype);
    for (int64_t i = 0; i < g.m; ++i) {
      std::memset(static_cast<char*>(g.c) + static_cast<size_t>(i * g.ldc) * SizeOf(g.out_dtype), 0, row_bytes);
    }
    return;
  }
  if (SkinnyBlock(g) || PanelBlock(g)) return;
  switch (g.dtype) {
    case DType::kFloat32:
      return FloatBlock(g);
    case DType::kFloat64:
      return DoubleBlock(g);
    case DType::kBFloat16:
      return WidenedBlock<BFloat16>(g);
    case DType::kFloat16:
      return WidenedBlock<_Float16>(g);
    case DType::kBool:
      return LoopBlock<bool>(g);
    case DType::kUInt8:
      return LoopBlock<uint8_t>(g);
    case DType::kInt8:
      return LoopBlock<int8_t>(g);
    case DType::kInt16:
      return LoopBlock<int16_t>(g);
    case DType::kUInt16:
      return LoopBlock<uint16_t>(g);
    case DType::kInt32:
      return LoopBlock<int32_t>(g);
    case DType::kUInt32:
      return LoopBlock<uint32_t>(g);
    case DType::kInt64:
      return LoopBlock<int64_t>(g);
    case DType::kUInt64:
      return LoopBlock<uint64_t>(g);
    case DType::kComplex64:
      return LoopBlock<std::complex<float>>(g);
    case DType::kComplex128:
      return LoopBlock<std::complex<double>>(g);
    case DType::kOpaque8:
    case DType::kOpaque16:
    case DType::kOpaque32:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2FNUZ:
    case DType::kFloat8E8M0FNU:
      return;  // CheckPlan lets no such product through
  }
}

}  // namespace tpu::host

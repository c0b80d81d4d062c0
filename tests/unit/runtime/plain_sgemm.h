// What stands for a BLAS in tests: column-major, as SgemmFn says.
#pragma once

namespace tpu::host {

inline void PlainSgemm(const char* ta, const char* tb, const int* m, const int* n, const int* k, const float* alpha,
                       const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
                       const int* ldc) {
  for (int j = 0; j < *n; ++j) {
    for (int i = 0; i < *m; ++i) {
      float sum = *beta == 0 ? 0 : *beta * c[i + j * *ldc];
      for (int p = 0; p < *k; ++p) {
        sum += *alpha * (*ta == 'N' ? a[i + p * *lda] : a[p + i * *lda]) *
               (*tb == 'N' ? b[p + j * *ldb] : b[j + p * *ldb]);
      }
      c[i + j * *ldc] = sum;
    }
  }
}

}  // namespace tpu::host

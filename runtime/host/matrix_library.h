// The matrix library of the host device, for what panels and plain loops leave to it: whatever BLAS the process carries
// (MKL, inside torch): the composition root hands its entry points in; without torch a plain blocked loop serves.
#pragma once

#include <cstdint>

namespace tpu::host {

// Fortran BLAS, column-major, 32-bit integers.
using SgemmFn = void (*)(const char* transa, const char* transb, const int* m, const int* n, const int* k,
                         const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                         const float* beta, float* c, const int* ldc);
using DgemmFn = void (*)(const char* transa, const char* transb, const int* m, const int* n, const int* k,
                         const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
                         const double* beta, double* c, const int* ldc);

struct MatrixLibrary {
  const char* name = "built-in";
  SgemmFn sgemm = nullptr;
  DgemmFn dgemm = nullptr;
  // Limits the library's own threads on the calling thread to `n`, returns the former limit
  // (MKL_Set_Num_Threads_Local).
  int (*set_threads_on_this_thread)(int n) = nullptr;
};

// Set once, before the first launch; the default is the built-in loop.
void SetMatrixLibrary(const MatrixLibrary& library);
const MatrixLibrary& GetMatrixLibrary();

}  // namespace tpu::host

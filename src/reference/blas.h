// OpenBLAS (or another CBLAS) opened at run time, so that the library works where there is none.
#pragma once

#include <string>

namespace fulmen::reference {

struct Blas {
  // cblas_sgemm with 32-bit integers; order 101 is row-major, transpose 111 no, 112 yes.
  using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a, int lda,
                         const float* b, int ldb, float beta, float* c, int ldc);
  Sgemm sgemm = nullptr;
  std::string library;  // the name it was opened by
  std::string reason;   // why there is none: what was looked for
};

// Looks at $FULMEN_BLAS alone where it is set, else at the usual names. The first call opens the library (milliseconds).
const Blas& blas();

}  // namespace fulmen::reference

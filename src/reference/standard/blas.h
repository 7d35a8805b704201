// OpenBLAS (or another CBLAS) opened at run time, so that the library works where there is none.
#pragma once

#include "fulmen/status.h"

namespace fulmen::reference {

// cblas_sgemm with 32-bit integers; order 101 is row-major, transpose 111 no, 112 yes.
using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k,
                       float alpha, const float* a, int lda, const float* b, int ldb, float beta,
                       float* c, int ldc);

// Looks at $FULMEN_BLAS alone where it is set, else at the usual names. The first call that finds
// one opens the library (milliseconds); later ones give the same. Errors: there is none, with what
// was looked for.
Result<Sgemm> find_sgemm();

}  // namespace fulmen::reference

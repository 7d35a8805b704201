// The loops over one row that standard attention and the oracle spend their time in.
#pragma once

#include <cstdint>

namespace fulmen::reference {

// Softmax of scores[0, count) in place, with one more logit (-inf: none) in the denominator.
// Returns the LSE. A row of nothing but -inf becomes zeros with LSE = -inf.
float softmax_row(float* scores, int64_t count, float sink) noexcept;

// acc[0, count) += factor * x[0, count)
void add_scaled(float* acc, const float* x, float factor, int64_t count) noexcept;
void add_scaled(double* acc, const double* x, double factor, int64_t count) noexcept;

}  // namespace fulmen::reference

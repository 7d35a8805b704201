// What standard attention rounds where the products are in 8 bits: docs/contract.md, "Products in 8
// bits".
#pragma once

#include <cstdint>

#include "fulmen/tensor.h"

namespace fulmen::reference {

// Rounds the numbers to int8 or to an fp8 format and back, with the scale by which the largest of
// them becomes the format's largest. Leaves them where one is not finite.
void round_with_one_scale(DType format, float* numbers, int64_t count) noexcept;
// Takes each row's mean from it. rows: [dim, count]; mean: [dim]. A mean that is not finite becomes
// 0 and is not taken.
void subtract_mean(float* rows, int64_t dim, int64_t count, float* mean) noexcept;
// Rounds a row's probabilities to fp8_e4m3 such that the largest becomes 256.
void round_probabilities(float* probabilities, int64_t count) noexcept;

}  // namespace fulmen::reference

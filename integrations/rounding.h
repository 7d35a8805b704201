// fp32 to fp16 and bf16, to nearest even, and back: rows that an integration computes itself.
#pragma once

#include <cstdint>

namespace fulmen_integrations {

// dtype: FULMEN_FP16 or FULMEN_BF16.
void round_row(const float* from, int64_t count, int32_t dtype, uint16_t* to);
void widen_row(const uint16_t* from, int64_t count, int32_t dtype, float* to);

}  // namespace fulmen_integrations

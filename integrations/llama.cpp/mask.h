// What ggml's f16 mask says. It is read once before the call, so that kernels skip half of a causal
// mask and the unused end of llama.cpp's cache.
#pragma once

#include <cstdint>
#include <vector>

#include "operation.h"

namespace fulmen_ggml {

struct MaskSummary {
  MaskForm form = MaskForm::none;  // never slopes: that is the caller's to say
  Keys keys;                       // {0, 0}: no query attends a key
};

// keep: resized to the mask's dims 3 and 2, the queries and the keys of the operation, row-major;
// 0 where the mask is -inf. The operation has a mask.
MaskSummary summarize_mask(const Operation& operation, std::vector<uint8_t>& keep);

}  // namespace fulmen_ggml

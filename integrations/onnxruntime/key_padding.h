// MultiHeadAttention's key_padding_mask.
#pragma once

#include "run.h"

namespace fulmen_ort {

// mask_filter_value up to which a masked key has no weight beside another one. ONNX Runtime adds
// the number to the key's score (-10000 where the model says nothing).
constexpr float kMasks = -1000;

// Hides the keys that `mask` (int32) calls padding: [batch] and [3 * batch + 2] begin with the
// number of each sequence's keys; [batch, keys] and [batch, queries, keys] have a number above 0
// for each key that stays. A query without any such key attends all of its keys: ONNX Runtime adds
// the same number to all their scores then. q and k are known. `causal`: query i attends keys up to
// before + i, and the last one all, which this applies, too.
void mask_keys(Run& run, const Value& mask, bool causal, int64_t before);

}  // namespace fulmen_ort

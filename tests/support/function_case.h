// Score functions, their tensors and block masks of cases.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/attention_case.h"

namespace fulmen::testing {

// Tensors for random_score_mod() and the like, with gradients of those of floats: slopes[heads],
// gain, table[heads, 17], int32 documents and int8 shifts of every position.
struct Functions {
  std::vector<float> slopes, gain, table, slopes_gradient, gain_gradient, table_gradient;
  std::vector<int32_t> documents;
  std::vector<int8_t> shifts;
  std::vector<FunctionTensor> list;

  Functions(const CaseSpec& s, Random& random, bool gradients);
};

// Texts over these tensors.
inline constexpr const char* kScores[] = {
    "score + slopes[h] * 0.02 * (k - q)",
    "score * (1.0 + 0.1 * tanh(gain)) + table[h, min(max(k - q + 8, 0), 16)]",
    "x = 0.2 * score + gain; 5.0 * tanh(x) * sigmoid(slopes[h] + score)",
    "select(q >= k, score, score - 0.125 * (k - q) * exp(-abs(gain)))",
    "select((q + k) % 3 == 0, -inf, score + log(2.0 + sin(slopes[h])))",
    "score + 0.01 * shifts[k] * gain * sqrt(1.0 + 0.001 * abs(q - k))",
    "table[h, k % 17] * erf(0.1 * score) + max(score, gain)",
};
inline constexpr const char* kMasks[] = {
    "q >= k",
    "documents[q] == documents[k]",
    "q - k < 40 & k - q < 25",
    "k < 5 | (q >= k & q - k <= 70)",
    "(q + 3 * k + h) % 4 != b % 2",
    "shifts[q] >= shifts[k] && h != 1",
    "true",
};

// What such functions are for, over the same tensors.
struct FunctionExample {
  const char *name, *score_mod, *mask_mod;
};
inline constexpr FunctionExample kFunctionExamples[] = {
    {"causal", "", "q >= k"},
    {"sliding window", "", "q >= k & q - k <= 37"},
    {"prefix LM", "", "q >= k | k < 20"},
    {"documents", "", "documents[q] == documents[k] & q >= k"},
    {"ALiBi", "score + slopes[h] * (k - q)", ""},
    {"softcap", "20.0 * tanh(score / 20.0)", ""},
    {"relative bias", "score + table[h, k - q + 8]", ""},
};

// A mask_mod with a band, alone or beside a condition over these tensors.
std::string random_band_mask(Random& random);
// Sets a random score_mod or mask_mod of these, or both.
void draw_functions(Case& c, Random& random);
// What forward gives with the functions becomes a backward case's out and lse.
void set_forward_results(Case& c);

// Lists of blocks, random or with full ones beside.
struct Blocks {
  std::vector<int32_t> counts, indices, full_counts, full_indices;
  void put(Case& c, int64_t block_q, int64_t block_k, bool by_head, Random& random);
};

}  // namespace fulmen::testing

// How alike an output in 8 bits and exact attention are.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "fulmen/fulmen.h"
#include "support/attention_case.h"

namespace fulmen::testing {

// What products in int8 keep, on normal inputs and on those of a language model.
inline constexpr double kInt8Cosine = 0.9995;

// The cosine between the case's output and attention in double precision, as vectors of all their
// elements.
inline double exact_cosine(const Case& c) {
  Problem problem = c.problem();
  problem.precision = Precision::exact;
  const std::vector<float> out = c.out_values();
  std::vector<double> exact(out.size());
  EXPECT_TRUE(attention_reference(problem, c.tensors, exact.data(), nullptr).ok());
  double dot = 0, of_out = 0, of_exact = 0;
  for (std::size_t n = 0; n < out.size(); ++n) {
    const auto x = static_cast<double>(out[n]);
    dot += x * exact[n];
    of_out += x * x;
    of_exact += exact[n] * exact[n];
  }
  return dot / std::sqrt(of_out * of_exact);
}

// Three channels of K lie around 10, as in language models.
inline void shift_channels(Case& c) {
  const Tensor k{const_cast<void*>(c.tensors.k.data), c.tensors.k.dtype, c.tensors.k.shape,
                 c.tensors.k.strides};
  for (int64_t b = 0; b < k.shape[0]; ++b) {
    for (int64_t j = 0; j < k.shape[1]; ++j) {
      for (int64_t h = 0; h < k.shape[2]; ++h) {
        for (const int64_t d : {3, 17, 40})
          Case::set(k, {b, j, h, d}, Case::get(k, {b, j, h, d}) + 10);
      }
    }
  }
}

}  // namespace fulmen::testing

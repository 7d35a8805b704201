// Rows whose bias is large everywhere, and what attention is of them: independent of the oracle and of its rule.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "support/attention_case.h"

namespace fulmen::testing {

// Fills a case's bias (in its constructor, with CaseSpec::huge_bias): a kind of row after the other, over sequences, heads and
// queries, those that the bias's dtype has.
void fill_huge_bias(const Tensor& bias);

// What a case's outputs are: its formula in double, of scores rounded to fp32 as every kernel has them, each less its row's maximum
// before anything else is done. The case has no sequences of their own lengths, no mask but a causal one, no ALiBi, softcap or
// dropout.
class SoftmaxOfDifferences {
 public:
  explicit SoftmaxOfDifferences(const Case& c);
  // Of the outputs that the case holds now.
  ::testing::AssertionResult matches() const;

 private:
  const Case& c_;
  std::vector<double> lse_;
  std::array<std::vector<double>, 6> sums_;  // out, dq, dk, dv, dbias, dsinks
  double dsinks_size_ = 0;
};

}  // namespace fulmen::testing

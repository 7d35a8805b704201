// Rows whose bias is large everywhere, and their attention, computed without the oracle and its
// rule.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "support/attention_case.h"

namespace fulmen::testing {

// Fills a case's bias (in its constructor, with CaseSpec::huge_bias): cycles through the kinds of
// rows that the bias's dtype can hold, over sequences, heads and queries.
void fill_huge_bias(const Tensor& bias);

// A case's expected outputs: its formula in double, over scores rounded to fp32 as every kernel has
// them; each row's maximum is subtracted first. The case has no sequences of their own lengths, no
// mask but a causal one, no ALiBi, softcap or dropout.
class SoftmaxOfDifferences {
 public:
  explicit SoftmaxOfDifferences(const Case& c);
  // Checks the outputs that the case holds now.
  ::testing::AssertionResult matches() const;

 private:
  const Case& c_;
  std::vector<double> lse_;
  std::array<std::vector<double>, 6> sums_;  // out, dq, dk, dv, dbias, dsinks
  double dsinks_size_ = 0;
};

}  // namespace fulmen::testing

// The AMX kernels on emulated tiles, through the registry like any backend. The steps between the
// products need AVX-512 BF16.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "support/attention_case.h"
#include "support/random.h"

namespace fulmen::testing {

// Its tests find the device amx_emulated.
class EmulatedAmx : public ::testing::Test {
 protected:
  static void SetUpTestSuite();
  void SetUp() override;
  // Returns true if the test's next case is run: one of two, by the seed; a long run takes all.
  bool drawn() { return long_run() || (cases_++ + test_seed()) % 2 == 0; }
  // Two query heads of one KV head; V's head_dim sometimes differs.
  static CaseSpec two_heads(int64_t seqlen_q, int64_t seqlen_k, int64_t head_dim);

 private:
  uint64_t cases_ = 0;  // that the test had so far
};

}  // namespace fulmen::testing

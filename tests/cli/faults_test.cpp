// The tolerance rule catches each seeded fault on problems of `fulmen verify`'s quick grid, and
// accepts the same loops without one.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "reference/verify/verify.h"
#include "support/faulty_attention.h"
#include "support/random.h"
#include "tools/verify/grid.h"

namespace fulmen::testing {
namespace {

constexpr double kMostWork = 2e6;  // multiply-adds: the faulty loops are slow

double work_of(const tools::GridCase& c) {
  return static_cast<double>(c.batch * c.heads * c.seqlen_q * c.seqlen_k *
                             (c.head_dim + c.head_dim_v));
}

void expect_all_caught(DType dtype, Pass pass, Fault first, Fault end) {
  std::vector<Fault> missed;
  for (int fault = static_cast<int>(first); fault < static_cast<int>(end); ++fault)
    missed.push_back(static_cast<Fault>(fault));
  tools::NormalPool pool(test_seed());
  SCOPED_TRACE("repeat it: FULMEN_TEST_SEED=" + std::to_string(test_seed()) +
               " test_cli --gtest_filter=Faults*");
  int right = 0;
  for (const tools::GridCase& c : tools::verify_grid(tools::GridSize::quick, dtype, pass)) {
    if (c.sequences != tools::Sequences::even || work_of(c) > kMostWork) continue;
    const tools::GridData data = tools::make_grid_data(c, pool);
    const Problem problem = tools::problem_of(c, data).value();
    faulty_attention(problem, data.tensors, Fault::none);
    reference::Expected expected;
    const VerifyReport report = reference::verify(problem, data.tensors, {}, &expected).value();
    EXPECT_TRUE(report.ok) << to_string(c) << ": " << report.message;
    ++right;
    std::erase_if(missed, [&](Fault fault) {
      faulty_attention(problem, data.tensors, fault);
      return !reference::verify(problem, data.tensors, {}, &expected).value().ok;
    });
  }
  EXPECT_GT(right, 50);
  for (const Fault fault : missed)
    ADD_FAILURE() << "missed in " << to_string(dtype) << ": " << name_of(fault);
}

constexpr auto kFirstForward = static_cast<Fault>(static_cast<int>(Fault::none) + 1);
constexpr auto kFirstBackward = static_cast<Fault>(static_cast<int>(Fault::forward_faults) + 1);

class Faults : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (const std::string why = left_to_other_runs(3); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(Faults, OfTheForwardPassAreCaught) {
  expect_all_caught(GetParam(), Pass::forward, kFirstForward, Fault::forward_faults);
}
TEST_P(Faults, OfTheBackwardPassAreCaught) {
  expect_all_caught(GetParam(), Pass::backward, kFirstBackward, Fault::end);
}

INSTANTIATE_TEST_SUITE_P(Each, Faults, ::testing::Values(DType::fp32, DType::fp16, DType::bf16),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace fulmen::testing

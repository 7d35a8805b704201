// The same problem on both emulators, that of the kernel's source and that of its machine code.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "gpu/drivers/isa/driver.h"
#include "isa/altered_compiler.h"
#include "support/run_kernel.h"
#include "support/test_chips.h"

namespace fulmen::testing {
namespace {

class IsaAndSource : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const Status status = gpu::isa_driver().available(); !status.ok())
      GTEST_SKIP() << status.message();
    if (const Status status = gpu::emulated_driver().available(); !status.ok())
      GTEST_SKIP() << status.message();
    if (const std::string why = why_not_drawn(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }

  static std::vector<float> values(Case& c, const std::string& backend, const std::string& family) {
    const std::string device = backend + ":" + GetParam();
    for (const std::string& kernel : kernels_for(c.problem(), device)) {
      if (kernel.find("." + family + ".") == std::string::npos || kernel.ends_with(".portable"))
        continue;
      EXPECT_TRUE(verified(c, kernel, {device})) << kernel;
      return c.output_values();
    }
    ADD_FAILURE() << "no " << family << " on " << device;
    return {};
  }

  static std::size_t different(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    std::size_t count = 0;
    for (std::size_t n = 0; n < std::min(a.size(), b.size()); ++n)
      count += std::bit_cast<uint32_t>(a[n]) != std::bit_cast<uint32_t>(b[n]) ? 1 : 0;
    return count;
  }

  // head_dim: one whose kernels no other test of this program runs.
  static CaseSpec spec(DType dtype, int64_t head_dim) {
    CaseSpec s;
    s.dtype = dtype;
    s.num_heads = 2;
    s.num_kv_heads = 1;
    s.head_dim = s.head_dim_v = head_dim;
    s.seqlen_q = 40;
    s.seqlen_k = 70;
    s.causal = Causal::bottom_right;
    return s;
  }

  static void expect_equal_without_contraction(const CaseSpec& s, const std::string& family) {
    const AlteredCompiler compiler("no contraction", "", "-ffp-contract=off", GetParam());
    if (!compiler.found()) GTEST_SKIP() << "no clang";
    Random random(2123);
    Case c(s, random);
    const std::vector<float> source = values(c, "emulated", family),
                             machine = values(c, "emulated-isa", family);
    EXPECT_EQ(different(source, machine), 0U) << "of " << source.size() << " values";
  }
};

// The host's compiler rounds twice, after a product and after a sum, where clang contracts them to
// one v_fma_f32. Without contraction nothing differs: both emulators take exp2, log2 and the
// reciprocal of the host, and add the products of a matrix in the order of k.
TEST_P(IsaAndSource, PrefillIsTheSameBitsButForContraction) {
  expect_equal_without_contraction(spec(DType::bf16, 72), "prefill");
}

TEST_P(IsaAndSource, BackwardIsTheSameBitsButForContraction) {
  CaseSpec s = spec(DType::fp16, 40);
  s.backward = true;
  expect_equal_without_contraction(s, "backward");
}

TEST_P(IsaAndSource, DecodeIsTheSameBitsButForContraction) {
  CaseSpec s = spec(DType::fp16, 104);
  s.seqlen_q = 1;
  s.seqlen_k = 300;
  s.causal = Causal::none;
  expect_equal_without_contraction(s, "decode");
}

INSTANTIATE_TEST_SUITE_P(Chips, IsaAndSource,
                         ::testing::ValuesIn(test_chips(is_amd, Chips::one_of_each_target)),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fulmen::testing

// Products of pairs of bf16 on any processor with AVX-512: its own, and what AVX-512 BF16 adds
// emulated.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "cpu/families.h"
#include "support/attention_case.h"
#include "support/cpu_backend.h"
#include "support/run_kernel.h"

namespace fulmen::testing {

const cpu::IsaTable& emulated_pairs_table();

namespace {

constexpr const char* kDevice = "pairs_emulated";

class EmulatedBackend final : public CpuBackend {
 public:
  EmulatedBackend()
      : CpuBackend(kDevice, "emulated pairs"), isa_{&emulated_pairs_table(), 1, true, ""} {
    add(cpu::make_kernel("prefill", isa_));
    add(cpu::make_kernel("short", isa_));
    add(cpu::make_kernel("decode", isa_));
    add(cpu::make_kernel("backward", isa_));
  }

 private:
  cpu::InstructionSet isa_;
};

class PairsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    static bool registered = false;
    if (!has_avx512() || registered) return;
    const Status status = register_backend(std::make_shared<EmulatedBackend>());
    ASSERT_TRUE(status.ok()) << status.message();
    registered = true;
  }
  void SetUp() override {
    if (!has_avx512()) GTEST_SKIP() << "this processor lacks AVX-512";
  }
  static void check(CaseSpec spec, Random& random) {
    spec.dtype = DType::bf16;
    Case c(spec, random);
    ASSERT_GT(expect_all_kernels_verified(c, Where{kDevice}), 0) << to_string(spec);
  }
};

TEST_F(PairsTest, Forward) {
  Random random(8300);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 60; ++i) check(random_spec(random), random);
}

// Bool masks that leave out, or keep, whole tiles.
TEST_F(PairsTest, Masks) {
  Random random(8305);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 40; ++i) {
    CaseSpec spec = i % 2 == 0 ? random_spec(random) : random_backward_spec(random);
    spec.seqlen_q = random.between(1, 300);
    spec.seqlen_k = random.between(1, 400);
    spec.keep = spec.nan_in_masked = true;
    spec.keep_pattern = random.pick({KeepPattern::triangle, KeepPattern::blocks,
                                     KeepPattern::right_padding, KeepPattern::one_key});
    check(spec, random);
  }
}

TEST_F(PairsTest, Decode) {
  static constexpr std::pair<int, int> kQueriesAndGroup[] = {{1, 1}, {1, 4},  {3, 3}, {1, 16},
                                                             {5, 4}, {11, 3}, {8, 8}, {64, 1}};
  Random random(8310);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 40; ++i) {
    CaseSpec spec;
    const auto [queries, group] =
        kQueriesAndGroup[random.between(0, static_cast<int64_t>(std::size(kQueriesAndGroup)) - 1)];
    spec.seqlen_q = queries;
    spec.num_kv_heads = random.between(1, 5);
    spec.num_heads = spec.num_kv_heads * group;
    spec.seqlen_k = random.between(queries, 700);
    spec.head_dim = random.between(1, 140);
    spec.head_dim_v = random.chance(0.5) ? spec.head_dim : random.between(1, 140);
    spec.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::odd_strides});
    spec.nan_in_masked = true;
    if (i % 3 == 0) spec.causal = Causal::bottom_right;
    if (i % 4 == 0) spec.keep = true;
    if (i % 5 == 0) spec.window_left = random.between(0, 500);
    check(spec, random);
  }
}

TEST_F(PairsTest, Backward) {
  Random random(8320);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 30; ++i) check(random_backward_spec(random), random);
}

}  // namespace
}  // namespace fulmen::testing

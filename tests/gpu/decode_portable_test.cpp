// Few queries without matrix instructions: fp32 on every chip, and each dtype where it is forced or
// no other kernel exists.
#include <string>

#include "gpu/gpu_devices.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuDecodePortable : public GpuTest {
 protected:
  static std::string kernel() {
    return device().substr(0, device().find(':')) + ".decode.portable";
  }
  static CaseSpec few(DType dtype, int64_t dim, int64_t queries, int64_t keys) {
    CaseSpec s;
    s.dtype = dtype;
    s.batch = 2;
    s.num_heads = 6;
    s.num_kv_heads = 2;
    s.head_dim = s.head_dim_v = dim;
    s.seqlen_q = queries;
    s.seqlen_k = keys;
    return s;
  }
  void check(const CaseSpec& spec, Random& random) const {
    if (!drawn()) return;
    Case c(spec, random);
    EXPECT_TRUE(verified(c, kernel(), {device()})) << to_string(spec);
  }
  static Plan planned(const CaseSpec& spec, const std::string& kernel = "") {
    Random random(9300);
    Case c(spec, random);
    c.options.kernel = kernel;
    Result<Plan> made = plan(c.problem(), device());
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made).value();
  }
};

// One workgroup of rows and several, with rows that none needs; parts of a wave's dims; one split
// and several.
TEST_P(GpuDecodePortable, ShapesAndLayouts) {
  Random random(own_stream(9310));
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    for (const int64_t dim : {1, 40, 128, 200}) {
      CaseSpec s = few(dtype, dim, random.between(1, 5), random.between(1, 600));
      s.head_dim_v = random.pick({dim, int64_t{24}});
      s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd});
      check(s, random);
    }
  }
  CaseSpec s = few(DType::fp32, 64, 1, 2000);
  s.batch = 1;
  EXPECT_GT(planned(s).config().num_splits, 1);
  check(s, random);
}

// One or two rows of few groups of lanes: the least LDS of a step, of which a wave has several.
TEST_P(GpuDecodePortable, FewRowsOfWideHeads) {
  Random random(own_stream(9315));
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const int64_t dim : {128, 256}) {
      CaseSpec s = few(dtype, dim, random.between(1, 2), 300);
      s.num_heads = s.num_kv_heads;
      check(s, random);
    }
  }
  CaseSpec s = few(DType::fp32, 128, 1, 150);
  s.num_heads = s.num_kv_heads = 1;
  Case c(s, random);
  EXPECT_TRUE(verified(c, kernel(), {device()})) << to_string(s);
}

// Keys and values that no row attends hold NaN.
TEST_P(GpuDecodePortable, MasksAndFeatures) {
  Random random(own_stream(9320));
  CaseSpec s = few(DType::fp32, 64, 4, 530);
  s.nan_in_masked = true;
  s.causal = Causal::bottom_right;
  s.window_left = random.between(0, 100);
  check(s, random);
  s = few(DType::fp16, 48, 3, 300);
  s.nan_in_masked = true;
  s.keep = true;
  s.softcap = 20;
  check(s, random);
  s = few(DType::bf16, 80, 2, 700);
  s.bias = true;
  s.alibi = 2;
  s.sinks = true;
  check(s, random);
}

TEST_P(GpuDecodePortable, Lengths) {
  Random random(own_stream(9330));
  for (const int64_t page : {0, 7, 32}) {
    CaseSpec s = few(DType::fp32, 64, 3, 400);
    s.batch = 3;
    s.used_k = true;
    s.page_size = page;
    s.leftpad_k = page != 7;
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    s.nan_in_masked = true;
    check(s, random);
  }
  CaseSpec s = few(DType::fp32, 32, 5, 300);
  s.batch = 3;
  s.packed_q = s.packed_k = true;
  s.causal = Causal::bottom_right;
  check(s, random);
}

// This kernel takes few queries of fp32; prefill's tiles take many queries, and dropout.
TEST_P(GpuDecodePortable, IsChosenForFewQueries) {
  EXPECT_EQ(planned(few(DType::fp32, 64, 1, 300)).config().kernel, kernel());
  EXPECT_EQ(planned(few(DType::fp32, 64, 5, 100)).config().kernel, kernel());
  const std::string tiles = device().substr(0, device().find(':')) + ".prefill_fp32.";
  const Plan many = planned(few(DType::fp32, 64, 6, 300));
  EXPECT_TRUE(many.config().kernel.starts_with(tiles)) << many.config().kernel;
  EXPECT_NE(many.explain().find("18 query rows share a KV head"), std::string::npos)
      << many.explain();
  CaseSpec s = few(DType::fp32, 64, 1, 300);
  s.dropout = 0.25F;
  EXPECT_TRUE(planned(s).config().kernel.starts_with(tiles)) << planned(s).config().kernel;
}

INSTANTIATE_TEST_SUITE_P(On, GpuDecodePortable,
                         ::testing::ValuesIn(gpu_devices(Chips::one_of_each_target)), test_name);

}  // namespace
}  // namespace fulmen::testing

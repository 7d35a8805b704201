// Faults seeded into kernels' source, compiled to AMD's machine code and executed: each is found,
// by the emulator's rules or by the tolerance rule.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/drivers/isa/driver.h"
#include "isa/altered_compiler.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

struct KernelFault {
  const char* name;
  const char* family;
  const char* sed;  // of the source as it is compiled
  void (*feature)(CaseSpec&);
};

// Decode of one query of each head, over several tiles of keys and a part of one.
void decoded(CaseSpec& s) { s.seqlen_q = 1, s.seqlen_k = 300; }

// Each fault has a head_dim of its own, so that no two share a kernel: a process keeps the kernels
// that it has loaded.
const std::vector<KernelFault> kFaults{
    {"WindowOneKeyMore", "prefill",
     "s/near(diagonal - a.window_left)/near(diagonal - a.window_left - 1)/",
     [](CaseSpec& s) { s.window_left = 20; }},
    {"CausalOneKeyLess", "prefill",
     "s/near(diagonal + a.window_right + 1)/near(diagonal + a.window_right)/",
     [](CaseSpec& s) { s.causal = Causal::bottom_right; }},
    {"KeysBehindTheEnd", "prefill",
     "s/const int left = at_most(key_end(a) - first_key, kScoreTile \\* kTiles);/const int left = "
     "kScoreTile * kTiles;/",
     [](CaseSpec&) {}},
    {"SoftcapWithoutTanh", "prefill",
     "s/score = a.softcap \\* tanh_by_exp2(score)/score = a.softcap * score/",
     [](CaseSpec& s) { s.softcap = 2; }},
    {"BiasOfTheWrongSign", "prefill", "s/score += scaled_bias;/score -= scaled_bias;/",
     [](CaseSpec& s) { s.bias = true; }},
    {"AlibiSigned", "prefill",
     "s/absolute(static_cast<float>(distance))/static_cast<float>(distance)/",
     [](CaseSpec& s) { s.alibi = 1; }},
    {"LseInBase2", "prefill", "s/kLn2 \\* (max + log2(sum))/(max + log2(sum))/", [](CaseSpec&) {}},
    {"OutputNotRescaled", "prefill", "s/FULMEN_INLINED rescale(factor);//",
     [](CaseSpec& s) { s.q_size = 3; }},
    {"ScaleOffByATenth", "prefill",
     "s/return kPlainScale ? a.scale/return kPlainScale ? 1.1F * a.scale/", [](CaseSpec&) {}},
    {"DropoutsScaleLeftOut", "prefill", "s/kDropout ? a.dropout_scale : 1.0F/1.0F/",
     [](CaseSpec& s) { s.dropout = 0.3F; }},
    {"KeepMaskOfTheNextKey", "prefill", "s/word\\[f \\/ 2\\] >> (/word[f \\/ 2] >> (1U + /",
     [](CaseSpec& s) { s.keep = true; }},
    {"DiagonalOfASequenceTopLeft", "prefill",
     "s/a.diagonal = call.top_left != 0 ? 0 : s.k_len - s.q_len;/a.diagonal = 0;/",
     [](CaseSpec& s) { s.used_k = s.even_lengths = true, s.causal = Causal::bottom_right; }},
    {"ValuesOfAnotherSequence", "prefill", "s/begin_at<KvElement>(a.v, s.k_row);//",
     [](CaseSpec& s) { s.packed_q = s.packed_k = s.even_lengths = true, s.batch = 3; }},
    {"BlockOfTheTableTwice", "decode",
     "s/block_table + row \\/ size/block_table + row \\/ size \\/ 2/",
     [](CaseSpec& s) { decoded(s), s.page_size = 64, s.batch = 2; }},
    {"BarriersLost", "prefill", "s/^ *barrier();.*$//",
     [](CaseSpec& s) { s.seqlen_q = s.seqlen_k = 140; }},
    {"QueryHeadForRow", "decode", "s/static_cast<unsigned>(row) %$/0U */",
     [](CaseSpec& s) { decoded(s), s.num_heads = 4; }},
    // Two splits, the first of which ends within a tile, since the window moves tiles off their
    // grid.
    {"KeysOfTheNextSplit", "decode",
     "s/(const ForwardArguments& .*) { return keys.end; }/(const ForwardArguments\\& a) { return "
     "a.seqlen_k; }/",
     [](CaseSpec& s) {
       decoded(s), s.seqlen_k = 1100, s.window_left = 700, s.head_dim = s.head_dim_v = 256;
     }},
};

class IsaKernelFaults : public ::testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    if (const std::string why = left_to_other_runs(3); !why.empty()) GTEST_SKIP() << why;
    if (const Status status = gpu::isa_driver().available(); !status.ok())
      GTEST_SKIP() << status.message();
  }

  // Checks the family's kernel by the tolerance rule, in an order of waves in which a missing
  // barrier shows.
  static ::testing::AssertionResult right(DType dtype) {
    const KernelFault& fault = kFaults[GetParam()];
    CaseSpec s;
    s.dtype = dtype;
    s.num_heads = 2;
    s.head_dim = s.head_dim_v = 16 + 8 * static_cast<int64_t>(GetParam());
    s.seqlen_q = 40;
    s.seqlen_k = 70;
    fault.feature(s);
    Random random(2123);
    Case c(s, random);
    for (const std::string& kernel : kernels_for(c.problem(), "emulated-isa:gfx1100")) {
      if (kernel.find(std::string(".") + fault.family + ".") == std::string::npos ||
          kernel.ends_with(".portable"))
        continue;
      EXPECT_TRUE(gpu::isa::set_schedule("reversed").ok());
      ::testing::AssertionResult result = verified(c, kernel, {"emulated-isa:gfx1100"});
      EXPECT_TRUE(gpu::isa::set_schedule("in-order").ok());
      return result;
    }
    ADD_FAILURE() << "no kernel of family " << fault.family << " for " << to_string(s);
    return ::testing::AssertionSuccess();
  }
};

TEST_P(IsaKernelFaults, AreFound) {
  const KernelFault& fault = kFaults[GetParam()];
  const AlteredCompiler compiler(std::string("seeded fault ") + fault.name, fault.sed, "");
  if (!compiler.found()) GTEST_SKIP() << "no clang";
  EXPECT_FALSE(right(DType::bf16));
  EXPECT_TRUE(compiler.changed_a_source()) << "the kernel has no longer what this fault changes";
}

// Another dtype has other kernels.
TEST_P(IsaKernelFaults, AndTheCallIsRightWithoutThem) { EXPECT_TRUE(right(DType::fp16)); }

INSTANTIATE_TEST_SUITE_P(Each, IsaKernelFaults, ::testing::Range(std::size_t{0}, kFaults.size()),
                         [](const auto& info) { return std::string(kFaults[info.param].name); });

}  // namespace
}  // namespace fulmen::testing

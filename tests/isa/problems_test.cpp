// Kernels of every family as machine code on AMD chips, by the tolerance rule, and bit for bit the
// same in three orders of waves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <string>
#include <vector>

#include "gpu/drivers/isa/driver.h"
#include "support/run_kernel.h"
#include "support/test_chips.h"

namespace fulmen::testing {
namespace {

class IsaProblems : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const Status status = gpu::isa_driver().available(); !status.ok())
      GTEST_SKIP() << status.message();
    if (const std::string why = why_not_drawn(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
  static std::string device() { return "emulated-isa:" + GetParam(); }

  // The family's kernels that support the case.
  static std::vector<std::string> kernels_of_family(const CaseSpec& spec,
                                                    const std::string& family) {
    Random random(2121);
    const Case c(spec, random);
    std::vector<std::string> kernels = kernels_for(c.problem(), device());
    std::erase_if(kernels, [&](const std::string& kernel) {
      return kernel.find("." + family + ".") == std::string::npos;
    });
    return kernels;
  }
  // The family's kernel with matrix instructions, or the one without, in three orders of waves.
  static void check(const CaseSpec& spec, const std::string& family, bool portable = false) {
    Random random(2121);
    Case c(spec, random);
    int checked = 0;
    for (const std::string& kernel : kernels_of_family(spec, family)) {
      if (kernel.ends_with(".portable") != portable) continue;
      ++checked;
      std::vector<float> first;
      for (const char* order : {"in-order", "reversed", "random:7"}) {
        ASSERT_TRUE(gpu::isa::set_schedule(order).ok());
        EXPECT_TRUE(verified(c, kernel, {device()}))
            << kernel << ", waves " << order << ": " << to_string(spec);
        const std::vector<float> values = outputs(c, spec);
        if (first.empty()) first = values;
        EXPECT_EQ(values, first) << kernel << ", waves " << order;
      }
    }
    ASSERT_TRUE(gpu::isa::set_schedule("in-order").ok());
    EXPECT_EQ(checked, 1) << family;
  }

  static CaseSpec small(DType dtype) {
    CaseSpec s;
    s.dtype = dtype;
    s.num_heads = 2;
    s.num_kv_heads = 1;
    s.head_dim = s.head_dim_v = 64;
    s.seqlen_q = 40;
    s.seqlen_k = 70;
    return s;
  }

 private:
  static std::vector<float> outputs(Case& c, const CaseSpec& spec) {
    std::vector<float> values;
    const auto& t = spec.backward ? c.tensors.dk : c.tensors.out;
    const int64_t rows = spec.backward ? spec.seqlen_k : spec.seqlen_q,
                  heads = spec.backward ? spec.num_kv_heads : spec.num_heads;
    const int64_t dims = spec.backward ? spec.head_dim : spec.head_dim_v;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t d = 0; d < dims; ++d) values.push_back(Case::get(t, {0, i, h, d}));
      }
    }
    return values;
  }
};

TEST_P(IsaProblems, Prefill) {
  CaseSpec s = small(DType::bf16);
  s.causal = Causal::bottom_right;
  check(s, "prefill");
  s.dtype = DType::fp16;
  s.sinks = true;
  check(s, "prefill");
}

// q k^T in int8: scores that are scaled alone, and others.
TEST_P(IsaProblems, PrefillInt8) {
  Random random(2125 + std::hash<std::string>()(GetParam()) % 1000);
  CaseSpec s = small(random.pick({DType::bf16, DType::fp16}));
  s.precision = Precision::int8;
  s.causal = random.pick({Causal::none, Causal::bottom_right});
  s.sinks = random.chance(0.5);
  check(s, "prefill_int8");
  s = small(random.pick({DType::bf16, DType::fp16}));
  s.precision = Precision::int8;
  s.head_dim = random.pick({100, 128, 256});
  s.head_dim_v = random.pick({64, 128, 256});
  s.window_left = random.between(10, 60);
  s.bias = random.chance(0.5);
  s.softcap = s.bias ? 0.0F : 20.0F;
  check(s, "prefill_int8");
}

// Both products in fp8, where the chip has them.
TEST_P(IsaProblems, PrefillE4m3) {
  const std::string chip = GetParam();
  if (chip != "gfx942" && chip != "gfx950" && !chip.starts_with("gfx12"))
    GTEST_SKIP() << chip << " multiplies no fp8";
  Random random(2225 + std::hash<std::string>()(chip) % 1000);
  CaseSpec s = small(random.pick({DType::bf16, DType::fp16}));
  s.precision = Precision::fp8;
  s.causal = random.pick({Causal::none, Causal::bottom_right});
  s.sinks = random.chance(0.5);
  check(s, "prefill_e4m3");
  s = small(random.pick({DType::bf16, DType::fp16}));
  s.precision = Precision::fp8;
  s.head_dim = random.pick({100, 128, 256});
  s.head_dim_v = random.pick({64, 128, 256});
  s.window_left = random.between(10, 60);
  s.bias = random.chance(0.5);
  s.softcap = s.bias ? 0.0F : 20.0F;
  check(s, "prefill_e4m3");
}

// A miscompilation on RDNA: sums of rows, after which a branch turns half of the lanes off.
TEST_P(IsaProblems, Decode) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    CaseSpec s = small(dtype);
    s.seqlen_q = 1;
    s.seqlen_k = 300;
    check(s, "decode");
  }
  // Two waves share their keys, and two splits are combined.
  CaseSpec s = small(DType::bf16);
  s.head_dim = s.head_dim_v = 256;
  s.seqlen_q = 1;
  s.seqlen_k = 1100;
  check(s, "decode");
  // The window begins inside the first one, whose last tile reaches into the second.
  s.head_dim = s.head_dim_v = 64;
  s.window_left = 701;
  s.nan_in_masked = true;
  check(s, "decode");
  s.window_left = -1;
  s.nan_in_masked = false;
  s.head_dim = 256;
  s.head_dim_v = 130;  // the second has few
  s.seqlen_k = 70;
  s.causal = Causal::bottom_right;
  check(s, "decode");
}

// A rows' tile that is not full and one that is, by four and by eight waves; keys that some queries
// attend alone, in pages of fewer rows than a tile and of more, and splits that are combined.
TEST_P(IsaProblems, DecodeLatent) {
  Random random(2126);
  CaseSpec s = small(random.pick({DType::bf16, DType::fp16}));
  s.num_heads = random.pick<int64_t>({20, 64, 70, 128});
  s.head_dim = 576;
  s.head_dim_v = 512;
  s.values_in_keys = true;
  s.seqlen_q = 1;
  s.seqlen_k = random.between(1, 130);
  if (kernels_of_family(s, "decode_latent").empty()) GTEST_SKIP() << "the chip has none";
  check(s, "decode_latent");
  s.num_heads = 16;
  s.seqlen_q = 3;
  s.seqlen_k = random.between(520, 560);
  s.causal = Causal::bottom_right;
  s.nan_in_masked = s.used_k = true;
  s.page_size = random.pick<int64_t>({4, 16, 64});
  check(s, "decode_latent");
}

// Keys and values in 8 bits and fewer: each chip draws one of three, and formats.
TEST_P(IsaProblems, Quantized) {
  Random random(2130 + std::hash<std::string>()(GetParam()) % 1000);
  CaseSpec s = small(DType::bf16);
  s.seqlen_q = 1;
  s.seqlen_k = 300;
  s.quantized = true;
  const int64_t drawn = random.between(0, 2);
  if (drawn == 0) {  // conversions to bf16, scales of tokens
    s.k_dtype = random.pick({DType::int8, DType::fp8_e4m3, DType::fp8_e4m3fnuz, DType::fp8_e5m2});
    s.v_dtype = random.pick({DType::int8, DType::fp8_e5m2fnuz});
    s.k_scale = s.v_scale = ScaleOf::token;
    s.page_size = random.pick({int64_t{0}, int64_t{64}});
    s.used_k = s.page_size > 0;
  } else if (drawn == 1) {  // to fp16
    s.dtype = DType::fp16;
    s.head_dim = s.head_dim_v = 96;
    s.k_dtype = random.pick({DType::int8, DType::fp8_e4m3});
    s.v_dtype = random.pick({DType::int8, DType::fp8_e4m3fnuz});
    s.v_scale = ScaleOf::head;
  } else {
    s.k_dtype = s.v_dtype =
        random.pick({DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1});
  }
  check(s, "decode", drawn == 2);
  if (drawn == 2) return;
  s.seqlen_q = 40;
  s.seqlen_k = 90;
  check(s, "prefill");
}

// Waves share query rows, values take their keys' place in LDS; several waves share a step's keys.
TEST_P(IsaProblems, WideHeads) {
  CaseSpec s = small(DType::bf16);
  s.num_heads = s.num_kv_heads = 1;
  s.head_dim = s.head_dim_v = 512;
  s.seqlen_q = 40;
  s.seqlen_k = 70;
  s.causal = Causal::bottom_right;
  check(s, "prefill");
  s.num_heads = 20;
  s.head_dim = 576;
  s.seqlen_q = 1;
  s.seqlen_k = 150;
  check(s, "decode");
}

TEST_P(IsaProblems, DecodeWithoutMatrixInstructions) {
  CaseSpec s = small(DType::fp32);
  s.seqlen_q = 3;
  s.seqlen_k = 1100;
  s.causal = Causal::bottom_right;
  check(s, "decode", true);
  s.dtype = DType::bf16;
  s.head_dim = s.head_dim_v = 200;
  check(s, "decode", true);
}

TEST_P(IsaProblems, Short) {
  CaseSpec s = small(DType::fp16);
  s.seqlen_q = s.seqlen_k = 64;
  s.head_dim = s.head_dim_v = 32;
  check(s, "short");
  // The keys' bits fill one and a half of a CDNA wave's masks.
  s.seqlen_q = 33;
  s.seqlen_k = 70;
  s.keep = s.nan_in_masked = true;
  check(s, "short");
}

TEST_P(IsaProblems, Backward) {
  CaseSpec s = small(DType::bf16);
  s.backward = true;
  s.causal = Causal::bottom_right;
  check(s, "backward");
  // On gfx12 half of the waves copy queries to LDS, the others dout. A tile of keys, and a part of
  // one.
  s.head_dim = s.head_dim_v = 128;
  s.seqlen_k = 140;
  check(s, "backward");
  // On CDNA rows come to registers straight from memory.
  if (!GetParam().starts_with("gfx9")) return;
  s.num_heads = 1;
  s.seqlen_q = 30;
  s.seqlen_k = 70;
  s.head_dim = 512;
  s.head_dim_v = 320;
  check(s, "backward");
}

// A bias that batches share, and its gradient: whole tiles, padding, and what takes each score's
// long way.
TEST_P(IsaProblems, BiasGradient) {
  CaseSpec s = small(DType::bf16);
  s.backward = true;
  s.gradients = {false, true, false, true, false};
  s.batch = 2;
  s.num_heads = 1;
  s.head_dim = s.head_dim_v = 32;
  s.seqlen_k = 80;
  s.bias = true;
  s.bias_broadcast = {true, false, false};
  check(s, "backward");
  s.keep = s.nan_in_masked = true;
  s.keep_broadcast = {false, true, true};
  check(s, "backward");
  s.keep = s.nan_in_masked = false;
  s.causal = Causal::bottom_right;
  s.bias_dtype = DType::bf16;
  s.softcap = 20;
  s.bias_broadcast = {true, true, true};
  check(s, "backward");
}

// Chips without matrix instructions.
class IsaPortableProblems : public IsaProblems {};

TEST_P(IsaPortableProblems, Prefill) {
  CaseSpec s = small(DType::fp16);
  s.causal = Causal::bottom_right;
  check(s, "prefill", true);
  s.head_dim = 72;  // the second chunk in part
  s.sinks = true;
  check(s, "prefill", true);
  s.dtype = DType::bf16;
  s.keep = s.nan_in_masked = true;
  check(s, "prefill", true);
  s.dtype = DType::fp32;
  s.head_dim = s.head_dim_v = 256;  // Q is fetched for each tile
  s.keep = s.nan_in_masked = false;
  check(s, "prefill", true);
}

// Scores far from each other: the reference moves in some tiles.
TEST_P(IsaPortableProblems, LargeInputs) {
  CaseSpec s = small(DType::fp16);
  s.seqlen_k = 300;
  s.q_size = 5;
  s.kv_size = 3;
  check(s, "prefill", true);
  s.seqlen_q = 2;
  check(s, "decode", true);
}

TEST_P(IsaPortableProblems, Boards) {
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    CaseSpec s = small(dtype);
    s.seqlen_q = s.seqlen_k = 64;
    s.head_dim = s.head_dim_v = 32;
    s.bias = true;
    check(s, "prefill", true);
  }
}

// Groups of 8, 16 and 32 lanes a key; rows of a lane's scores from 1 to 8.
TEST_P(IsaPortableProblems, Decode) {
  CaseSpec s = small(DType::fp16);
  s.seqlen_q = 1;
  s.seqlen_k = 300;
  check(s, "decode", true);
  s.num_heads = 8;
  s.head_dim = 96;
  s.keep = s.nan_in_masked = true;
  check(s, "decode", true);
  s.dtype = DType::bf16;
  s.head_dim = s.head_dim_v = 200;
  s.window_left = 130;
  check(s, "decode", true);
}

TEST_P(IsaPortableProblems, Backward) {
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    CaseSpec s = small(dtype);
    s.backward = true;
    s.causal = Causal::bottom_right;
    check(s, "backward", true);
    s.head_dim = 160;  // dk and dv by launches of their own
    s.bias = true;
    check(s, "backward", true);
  }
}

INSTANTIATE_TEST_SUITE_P(Chips, IsaPortableProblems, ::testing::ValuesIn(portable_test_chips()),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(Chips, IsaProblems, ::testing::ValuesIn(test_chips(is_amd)),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fulmen::testing

// The backward pass whose tiles the TMA loads, on the one emulated chip that has it, and on the
// machine's GPU where it is a Hopper.
#include <algorithm>
#include <cstring>

#include "gpu/gpu_devices.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuBackwardTma : public HopperTest {
 protected:
  GpuBackwardTma() : HopperTest("backward_tma", true) {}
  // Sums in order, or as blocks come.
  void check(const CaseSpec& spec, Random& random, std::size_t shift = 0) const {
    if (!drawn(3)) return;
    Case c(spec, random);
    c.options.deterministic = random.chance(0.5);
    EXPECT_TRUE(verified(c, kernel(), {device(), shift}))
        << to_string(spec) << ", deterministic " << c.options.deterministic;
  }
};

// Several tiles of keys and queries, the last ones partial; dims that fill panels, and that do not.
TEST_P(GpuBackwardTma, ShapesAndLayouts) {
  Random random(8200);
  for (const int64_t dim : {64, 128, 80, 96, 104, 256, 136}) {
    CaseSpec s = spec_of(dim == 128 ? DType::fp16 : DType::bf16, dim, random.between(129, 260),
                         random.between(129, 300), random);
    s.num_heads = 2;
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd});
    check(s, random);
  }
  check(spec_of(DType::bf16, 64, 1, 147, random), random);
  check(spec_of(DType::fp16, 128, random.between(64, 130), random.between(1, 64), random), random);
}

// Bands that a warpgroup, or a workgroup, does not meet; keys that no query attends are NaN; heads
// that share keys.
TEST_P(GpuBackwardTma, Bands) {
  Random random(8210);
  for (const int64_t dim : {64, 128, 256}) {
    CaseSpec s = spec_of(DType::bf16, dim, 300, 280, random);
    s.num_heads = 2;
    s.num_kv_heads = 1;
    s.causal = random.pick({Causal::bottom_right, Causal::top_left});
    s.nan_in_masked = true;
    check(s, random);
    s.window_left = random.between(0, 90);
    check(s, random);
    s.causal = Causal::none;
    s.window_right = random.between(0, 20);
    s.seqlen_k = 450;
    check(s, random);
  }
  check(dropout_in_band(random.between(65, 140), 300, random), random);
  // Blocks of keys without a query, before others and behind them.
  for (const int64_t dim : {64, 128, 256}) {
    CaseSpec few = spec_of(DType::bf16, dim, 100, 512, random);
    few.window_left = 20;
    few.window_right = 0;
    check(few, random);
    few.seqlen_k = 384;
    few.num_heads = few.num_kv_heads = 3;
    few.window_left = -1;
    few.window_right = -1;
    few.causal = Causal::top_left;
    check(few, random);
  }
  // More blocks of keys than workgroups: the last heads' first blocks come before their others.
  CaseSpec many = spec_of(DType::bf16, 64, 640, random.between(513, 640), random);
  many.num_heads = 4;
  many.num_kv_heads = 2;
  many.causal = random.pick({Causal::bottom_right, Causal::top_left});
  check(many, random);
  many.batch = 2;  // of four heads the last two
  check(many, random);
  many.head_dim = many.head_dim_v = 256;
  many.seqlen_q = many.seqlen_k = random.between(257, 300);
  check(many, random);
  // Whole tiles of queries without a key: no block adds to their dq, and with a sink their
  // log-sum-exp is finite.
  CaseSpec s = spec_of(DType::bf16, 64, 400, 150, random);
  s.causal = Causal::bottom_right;
  s.sinks = true;
  check(s, random);
}

TEST_P(GpuBackwardTma, Features) {
  Random random(8220);
  CaseSpec s = spec_of(DType::fp16, 40, 150, 190, random);
  s.batch = 2;
  s.head_dim_v = 72;
  s.softcap = 20;
  s.sinks = true;
  s.dlse = true;
  check(s, random);
  s = spec_of(DType::bf16, 128, 140, 150, random);
  s.alibi = 2;
  s.bias = true;
  s.bias_dtype = DType::fp32;
  s.gradients[3] = false;
  s.dropout = 0.3F;
  s.causal = Causal::bottom_right;
  check(s, random);
  check(s, random, 1);  // tensors at no multiple of 16 bytes: backward_wgmma's code
  for (const bool dk : {true, false}) {
    s = spec_of(DType::fp16, dk ? 64 : 192, 70, 140, random);
    s.gradients = {true, dk, !dk, false, false};
    check(s, random);
  }
  // Wide heads, of which one side may be narrow.
  s = spec_of(DType::bf16, 192, 140, 150, random);
  s.head_dim_v = 64;
  s.alibi = 2;
  s.bias = true;
  s.bias_dtype = DType::bf16;
  s.gradients[3] = false;
  s.dropout = 0.3F;
  s.causal = Causal::bottom_right;
  check(s, random);
  s.head_dim = 72;
  s.head_dim_v = 256;
  s.softcap = 20;
  s.sinks = true;
  check(s, random);
}

// Without an order, many blocks that would wait for the one that stores a tile of dq add to zeros:
// 8 of a narrow head without a mask, 16 under a causal mask where heads share keys.
TEST_P(GpuBackwardTma, SumsFromZeros) {
  Random random(8235);
  for (const bool shared : {false, true}) {
    CaseSpec s =
        spec_of(DType::bf16, shared ? random.pick<int64_t>({64, 128}) : 64, random.between(65, 140),
                shared ? random.between(1921, 1990) : random.between(897, 1000), random);
    s.num_heads = 2;
    s.num_kv_heads = shared ? 1 : 2;
    s.causal = shared ? Causal::bottom_right : Causal::none;
    Case c(s, random);
    c.options.deterministic = false;
    EXPECT_TRUE(verified(c, kernel(), {device()})) << to_string(s);
  }
}

// A tile of queries meets several blocks of keys, each of which adds to its dq: with an order, and
// without one.
TEST_P(GpuBackwardTma, OrderOfSums) {
  Random random(8230);
  for (const int64_t dim : random.sample<int64_t>({64, 128, 256}, 1)) {
    for (const bool deterministic : {true, false}) {
      CaseSpec s =
          spec_of(DType::bf16, dim, random.between(130, 300), random.between(400, 700), random);
      s.num_heads = s.num_kv_heads = 3;
      s.causal = random.pick({Causal::none, Causal::bottom_right, Causal::top_left});
      Case c(s, random);
      c.options.deterministic = deterministic;
      EXPECT_TRUE(verified(c, kernel(), {device()}))
          << to_string(s) << ", deterministic " << deterministic;
      c.options.kernel = kernel();
      const Result<Plan> planned = plan(c.problem(), device(), c.options);
      ASSERT_TRUE(planned.ok()) << planned.status().message();
      EXPECT_EQ(planned->explain().find("gradients may differ in bits") == std::string::npos,
                deterministic)
          << planned->explain();
    }
  }
}

// It is chosen where blocks fill a chip; with an order of sums only where blocks would not wait for
// each other.
TEST_P(GpuBackwardTma, IsChosenWhereBlocksDoNotWait) {
  Random random(8250);
  struct Call {
    int64_t head_dim, heads, seqlen_q, seqlen_k;
    // Chosen where sums have an order, and where they have none.
    bool causal, in_order, as_they_come;
  };
  for (const Call& call : {Call{128, 64, 512, 512, false, true, true},
                           {128, 8, 512, 512, true, false, false},  // few blocks
                           // Half as many tiles as blocks.
                           {128, 16, 512, 2048, false, true, true},
                           {128, 16, 448, 2048, false, false, true},  // fewer
                           {128, 16, 448, 2048, true, true, true},    // under a mask, all the same
                           {256, 2, 512, 512, false, true, true},
                           {256, 1, 512, 512, true, false, false},
                           // A quarter as many tiles as blocks.
                           {256, 2, 256, 2048, true, true, true},
                           {256, 2, 192, 2048, true, false, true},  // fewer
                           {256, 8, 128, 128, false, true, true}}) {
    CaseSpec s = spec_of(DType::bf16, call.head_dim, 64, 64, random);
    s.batch = s.num_heads = s.num_kv_heads = 2;  // strides of all dimensions
    Problem p = Case(s, random).problem();
    p.batch = 1;
    p.num_heads = p.num_kv_heads = call.heads;
    p.seqlen_q = call.seqlen_q;
    p.seqlen_k = call.seqlen_k;
    if (call.causal) p.window_right = 0;
    for (const bool deterministic : {true, false}) {
      p.deterministic = deterministic;
      const Result<Plan> planned = plan(p, device());
      ASSERT_TRUE(planned.ok()) << planned.status().message();
      EXPECT_EQ(planned->config().kernel == kernel(),
                deterministic ? call.in_order : call.as_they_come)
          << planned->explain();
    }
  }
}

// Why it refuses a problem, in explain's words.
TEST_P(GpuBackwardTma, SaysWhyNot) {
  Random random(8240);
  expect_reason(spec_of(DType::bf16, 59, 150, 150, random),
                "the TMA reads rows and strides of whole pieces of 16 bytes", random);
}

// A 16-bit bias whose rows are whole: pairs of keys are transposed in registers. The last tile of
// keys has 8 of them, that of queries a part.
TEST_P(GpuBackwardTma, WholeBias) {
  Random random(9345);
  for (const int64_t dim : {64, 128, 192}) {
    CaseSpec s = spec_of(random.pick({DType::fp16, DType::bf16}), dim, random.between(70, 140),
                         8 * random.between(17, 33), random);
    s.num_heads = 2;
    s.num_kv_heads = random.between(1, 2);
    s.bias = true;
    s.bias_dtype = s.dtype;
    s.bias_broadcast = {random.chance(0.5), random.chance(0.5), random.chance(0.3)};
    s.gradients[3] = false;
    s.alibi = random.chance(0.3) ? 1 : 0;
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    check(s, random);
  }
}

INSTANTIATE_TEST_SUITE_P(On, GpuBackwardTma, ::testing::ValuesIn(hopper_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing

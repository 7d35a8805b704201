// The backward pass on emulated tiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "amx/emulated_backend.h"
#include "support/attention_case.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

constexpr const char* kKernel = "cpu.backward.amx_emulated";

class EmulatedAmxBackward : public EmulatedAmx {
 protected:
  static void check(Case& c) {
    c.options.num_threads = 2;
    EXPECT_TRUE(verified(c, kKernel, {"amx_emulated"}));
  }
  void check(CaseSpec spec, Random& random) {
    if (!drawn()) return;
    spec.backward = true;
    spec.dtype = DType::bf16;
    Case c(spec, random);
    check(c);
  }
};

TEST_F(EmulatedAmxBackward, EveryShape) {
  Random random(4);
  SCOPED_TRACE(test_seed());
  for (const int64_t head_dim : {1, 16, 31, 32, 48, 59, 64, 80, 111, 128, 256, 500, 512}) {
    for (const auto& [seqlen_q, seqlen_k] : {std::pair{1, 147}, {64, 64}, {113, 203}, {70, 33}}) {
      CaseSpec spec = two_heads(seqlen_q, seqlen_k, head_dim);
      spec.causal = random.pick({Causal::none, Causal::bottom_right});
      check(spec, random);
    }
  }
}

// Several blocks of held keys, and splits of the keys: sums of dQ wait in memory.
TEST_F(EmulatedAmxBackward, LongRows) {
  Random random(5);
  SCOPED_TRACE(test_seed());
  for (const Causal causal : {Causal::none, Causal::bottom_right, Causal::top_left}) {
    CaseSpec spec;
    spec.batch = 1;
    spec.num_heads = spec.num_kv_heads = 1;
    spec.seqlen_q = 150;
    spec.seqlen_k = 1300;
    spec.head_dim = spec.head_dim_v = 48;
    spec.causal = causal;
    check(spec, random);
  }
}

TEST_F(EmulatedAmxBackward, AnyFeatures) {
  Random random(6);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 40; ++i) check(random_backward_spec(random), random);
}

// More keys than are held at a time in one split, or in each of several: dQ and delta are kept in
// sums until the next block. With enough heads there is no split and they share their workers'
// sums; half as many heads are split in two.
TEST_F(EmulatedAmxBackward, SeveralBlocksOfASplit) {
  Random random(7);
  SCOPED_TRACE(test_seed());
  for (const int64_t batch : {2, 4}) {
    for (const Causal causal : {Causal::none, Causal::bottom_right, Causal::top_left}) {
      CaseSpec spec;
      spec.batch = batch;
      spec.num_kv_heads = 4;
      spec.num_heads = spec.num_kv_heads * random.between(1, 2);
      spec.seqlen_q = random.pick<int64_t>({33, 97, 150});
      spec.seqlen_k = batch == 2 ? 1100 : random.pick<int64_t>({513, 640, 1025});
      spec.head_dim = random.pick<int64_t>({16, 20});
      spec.head_dim_v = random.pick<int64_t>({8, 33});
      spec.causal = causal;
      // Rows that end in one block, or begin in a later one than their neighbours.
      if (causal != Causal::none)
        spec.window_left = random.chance(0.5) ? random.between(0, 600) : -1;
      spec.dlse = random.chance(0.5);
      check(spec, random);
    }
  }
}

// What rows that attend nothing hold must not matter. A row that attends keys whose bias is -inf
// has scores: NaN stays NaN there.
void poison_rows_without_keys(Case& c) {
  if (c.spec.huge_bias) return;
  const Problem p = c.problem();
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.num_heads; ++h) {
      for (int64_t i = 0; i < p.seqlen_q; ++i) {
        if (Case::get(c.tensors.lse, {b, h, i, 0}) != -HUGE_VALF) continue;
        for (int64_t d = 0; d < p.head_dim; ++d)
          Case::set(c.tensors.q, {b, i, h, d}, d % 2 == 0 ? NAN : HUGE_VALF);
        for (int64_t d = 0; d < p.head_dim_v; ++d)
          Case::set(c.tensors.dout, {b, i, h, d}, d % 2 == 0 ? NAN : HUGE_VALF);
      }
    }
  }
}

// A pass's two query tiles attend different keys, in bands from the diagonal alone to all; the last
// has any number of rows.
TEST_F(EmulatedAmxBackward, TilesOfAPassThatAttendDifferentKeys) {
  Random random(8);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 30; ++i) {
    CaseSpec spec = random_backward_spec(random);
    spec.dtype = DType::bf16;
    spec.batch = 1;
    spec.seqlen_q = 64 * random.between(1, 4) + random.pick<int64_t>({-1, 0, 1, 31, 32, 33});
    spec.seqlen_k = random.chance(0.2) ? 600 : 32 * random.between(1, 9) + random.between(-1, 1);
    spec.num_kv_heads = random.between(1, 2);
    spec.num_heads = spec.num_kv_heads * random.between(1, 2);
    spec.head_dim = std::min<int64_t>(spec.head_dim, 40);
    spec.head_dim_v = std::min<int64_t>(spec.head_dim_v, 40);
    if (random.chance(0.7))
      spec.window_left = random.chance(0.5) ? random.between(0, 5) : random.between(0, 150);
    if (random.chance(0.7))
      spec.window_right = random.chance(0.5) ? random.between(0, 5) : random.between(0, 150);
    Case c(spec, random);
    poison_rows_without_keys(c);
    check(c);
  }
}

// Lengths that differ from the plan's, which cuts the keys into blocks and splits.
TEST_F(EmulatedAmxBackward, PackedSequences) {
  Random random(9);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 12; ++i) {
    CaseSpec spec = random_backward_spec(random);
    spec.seqlen_q = random.pick<int64_t>({1, 70, 200});
    spec.seqlen_k = random.pick<int64_t>({40, 150, 700, 1100});
    spec.num_kv_heads = random.pick<int64_t>({1, 4});
    spec.num_heads = spec.num_kv_heads;
    spec.head_dim = std::min<int64_t>(spec.head_dim, 40);
    spec.head_dim_v = std::min<int64_t>(spec.head_dim_v, 40);
    spec.bias = spec.keep = false;
    spec.alibi = std::min(spec.alibi, 1);
    draw_variable_lengths(spec, random);
    check(spec, random);
  }
}

// Calls that are bigger than the caches store gradients past them, where rows are whole lines.
TEST_F(EmulatedAmxBackward, StoresPastTheCaches) {
  Random random(10);
  SCOPED_TRACE(test_seed());
  for (const Layout layout : {Layout::bshd, Layout::bhsd}) {
    CaseSpec spec;
    spec.layout = layout;
    spec.batch = 16;
    spec.num_heads = spec.num_kv_heads = 8;
    spec.seqlen_q = random.pick<int64_t>({130, 161});
    spec.seqlen_k = random.pick<int64_t>({33, 70});
    spec.head_dim = 128;
    spec.head_dim_v = random.pick<int64_t>({96, 100});
    spec.causal = random.pick({Causal::none, Causal::top_left});
    spec.backward = true;
    spec.dtype = DType::bf16;
    Case c(spec, random);
    ASSERT_GT(c.problem().bytes(), 16e6);
    check(c);
  }
}

// The same for any subset of the gradients: those that are not asked for still have scratch of
// their own.
TEST_F(EmulatedAmxBackward, BitEqualForAnyThreadsAndOutputs) {
  Random random(11);
  SCOPED_TRACE(test_seed());
  for (const auto& [batch, seqlen_k] : {std::pair{7, 40}, {1, 300}, {9, 700}}) {
    CaseSpec spec;
    spec.backward = true;
    spec.dtype = DType::bf16;
    spec.batch = batch;
    spec.num_heads = spec.num_kv_heads = 2;
    spec.seqlen_q = random.pick<int64_t>({30, 64, 100});
    spec.seqlen_k = seqlen_k;
    spec.head_dim = spec.head_dim_v = random.pick<int64_t>({16, 24});
    spec.causal = random.pick({Causal::none, Causal::bottom_right});
    spec.bias = true;
    spec.dropout = random.pick({0.0F, 0.3F});
    Case c(spec, random);
    c.options.num_threads = 1;
    ASSERT_TRUE(verified(c, kKernel, {"amx_emulated"}));
    const std::vector<float> all = c.output_values();
    for (const int threads : {2, 5}) {
      c.options.num_threads = threads;
      ASSERT_TRUE(run_kernel(c, kKernel, {"amx_emulated"}).ok());
      const std::vector<float> again = c.output_values();
      EXPECT_EQ(std::memcmp(all.data(), again.data(), all.size() * sizeof(float)), 0)
          << threads << ' ' << to_string(spec);
    }
    // One at a time.
    const AttentionTensors tensors = c.tensors;
    for (Tensor AttentionTensors::* const one : {&AttentionTensors::dq, &AttentionTensors::dk,
                                                 &AttentionTensors::dv, &AttentionTensors::dbias}) {
      c.tensors = tensors;
      for (Tensor AttentionTensors::* const other :
           {&AttentionTensors::dq, &AttentionTensors::dk, &AttentionTensors::dv,
            &AttentionTensors::dbias}) {
        if (other != one) c.tensors.*other = {};
      }
      ASSERT_TRUE(run_kernel(c, kKernel, {"amx_emulated"}).ok());
      const std::vector<float> alone = c.output_values();
      EXPECT_NE(std::search(all.begin(), all.end(), alone.begin(), alone.end()), all.end())
          << to_string(spec);
    }
  }
}

}  // namespace
}  // namespace fulmen::testing

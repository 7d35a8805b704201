// Bool masks that leave out, or keep, whole tiles: the summary itself, and every kernel beside the
// oracle with NaN behind the masks.
#include "cpu/mask_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

constexpr KeepPattern kPatterns[] = {KeepPattern::triangle,     KeepPattern::blocks,
                                     KeepPattern::left_padding, KeepPattern::right_padding,
                                     KeepPattern::one_key,      KeepPattern::nothing};

CaseSpec masked_spec(KeepPattern pattern, int64_t seqlen_q, int64_t seqlen_k, Random& random) {
  CaseSpec s;
  s.dtype = random.pick({DType::fp32, DType::bf16, DType::bf16, DType::fp16});
  s.batch = random.between(1, 2);
  s.num_kv_heads = random.between(1, 2);
  s.num_heads = s.num_kv_heads * random.between(1, 2);
  s.seqlen_q = seqlen_q;
  s.seqlen_k = seqlen_k;
  s.head_dim = random.pick<int64_t>({16, 40, 64, 80});
  s.head_dim_v = random.pick<int64_t>({s.head_dim, 32});
  s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::odd_strides});
  s.keep = s.nan_in_masked = true;
  s.keep_pattern = pattern;
  for (bool& broadcast : s.keep_broadcast) broadcast = random.chance(0.5);
  s.causal = random.pick({Causal::none, Causal::none, Causal::bottom_right, Causal::top_left});
  if (random.chance(0.2)) s.window_left = random.between(10, 200);
  s.bias = random.chance(0.2);
  s.alibi = random.chance(0.2) ? 1 : 0;
  s.softcap = random.chance(0.1) ? 20.0F : 0.0F;
  s.sinks = random.chance(0.2);
  s.lse = random.chance(0.5);
  s.dropout = random.chance(0.1) ? 0.2F : 0.0F;
  return s;
}

// The summary beside a plain look at each tile, on masks whose rows, heads and sequences lie apart.
TEST(MaskTiles, SummaryIsExact) {
  Random random(9700);
  for (int n = 0; n < 60; ++n) {
    Problem p;
    p.batch = random.between(1, 3);
    p.num_heads = p.num_kv_heads = random.between(1, 3);
    p.seqlen_q = random.between(1, 200);
    p.seqlen_k = random.between(1, 300);
    p.keep_mask.present = true;
    p.keep_mask.dtype = DType::boolean;
    auto& strides = p.keep_mask.strides;
    strides[3] = 1;
    strides[2] = random.chance(0.2) ? 0 : p.seqlen_k + random.between(0, 9);
    strides[1] = random.chance(0.3) ? 0 : p.seqlen_q * strides[2] + random.between(0, 70);
    strides[0] = random.chance(0.3) ? 0 : p.num_heads * (p.seqlen_q * strides[2] + 70);
    // Mostly runs of bytes that are alike, and longer than a tile's part of a row.
    std::vector<uint8_t> mask(3 * 3 * (200 * 309 + 70) + 300);
    const int64_t run = random.pick({300, 4096, 40000});
    for (std::size_t first = 0; first < mask.size(); first += static_cast<std::size_t>(run)) {
      const int kind = random.pick({0, 1, 1, 2});
      for (std::size_t i = first; i < std::min(mask.size(), first + static_cast<std::size_t>(run));
           ++i)
        mask[i] = static_cast<uint8_t>(kind == 0   ? 0
                                       : kind == 1 ? random.pick({1, 128, 255})
                                                   : random.pick({0, 1}));
    }
    AttentionTensors tensors;
    tensors.keep_mask.data = mask.data();
    cpu::ThreadSettings threads;
    threads.num_threads = static_cast<int>(random.between(1, 3));
    const cpu::MaskTiles tiles(p, threads.num_threads);
    std::vector<cpu::Kept> memory(static_cast<std::size_t>(tiles.bytes()));
    const cpu::MaskSummary summary = tiles.summarise(tensors, threads, {}, memory.data());
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t h = 0; h < p.num_heads; ++h) {
        for (int64_t row = 0; row < p.seqlen_q; row += 64) {
          for (int64_t key = 0; key < p.seqlen_k; key += 64) {
            bool any = false, all = true;
            for (int64_t i = row; i < std::min(row + 64, p.seqlen_q); ++i) {
              for (int64_t j = key; j < std::min(key + 64, p.seqlen_k); ++j) {
                const auto at =
                    static_cast<std::size_t>(b * strides[0] + h * strides[1] + i * strides[2] + j);
                (mask[at] != 0 ? any : all) = mask[at] != 0;
              }
            }
            const cpu::Kept expected = !any  ? cpu::Kept::none
                                       : all ? cpu::Kept::all
                                             : cpu::Kept::some;
            ASSERT_EQ(cpu::kept_of(p, summary, b, h, row, key, 64), expected)
                << "b=" << b << " h=" << h << " row=" << row << " key=" << key << " n=" << n;
          }
        }
      }
    }
  }
}

TEST(MaskTiles, Forward) {
  Random random(9710);
  SCOPED_TRACE(test_seed());
  for (const KeepPattern pattern : kPatterns) {
    for (const auto& [seqlen_q, seqlen_k] :
         {std::pair{200, 300}, {65, 513}, {130, 128}, {320, 320}, {128, 70}, {600, 129}}) {
      Case c(masked_spec(pattern, seqlen_q, seqlen_k, random), random);
      EXPECT_GT(expect_all_kernels_verified(c), 0);
    }
  }
}

TEST(MaskTiles, Backward) {
  Random random(9720);
  SCOPED_TRACE(test_seed());
  for (const KeepPattern pattern : kPatterns) {
    for (const auto& [seqlen_q, seqlen_k] :
         {std::pair{200, 300}, {65, 700}, {130, 128}, {257, 257}, {40, 300}, {300, 50}}) {
      CaseSpec s = masked_spec(pattern, seqlen_q, seqlen_k, random);
      s.backward = s.lse = true;
      s.bias = random.chance(0.5);
      for (bool& summed : s.dbias_summed) summed = random.chance(0.3);
      for (bool& wanted : s.gradients) wanted = random.chance(0.8);
      s.gradients[static_cast<std::size_t>(random.between(0, 2))] = true;
      Case c(s, random);
      EXPECT_GT(expect_all_kernels_verified(c), 0);
    }
  }
}

// Blocks of keys of which nothing is kept, at the beginning, between others, at the end, and
// splits that have no others.
TEST(MaskTiles, Decode) {
  Random random(9730);
  SCOPED_TRACE(test_seed());
  for (const KeepPattern pattern : kPatterns) {
    for (const auto& [rows, seqlen_k] :
         {std::pair{1, 2300}, {1, 300}, {3, 1100}, {8, 513}, {40, 700}}) {
      CaseSpec s = masked_spec(pattern, rows, seqlen_k, random);
      s.num_heads = s.num_kv_heads * random.pick<int64_t>({1, 2, rows == 1 ? 12 : 1});
      Case c(s, random);
      EXPECT_GT(expect_all_kernels_verified(c), 0);
    }
  }
}

TEST(MaskTiles, SequencesOfDifferentLengths) {
  Random random(9740);
  SCOPED_TRACE(test_seed());
  for (const KeepPattern pattern : kPatterns) {
    for (const bool backward : {false, false, true}) {
      CaseSpec s = masked_spec(pattern, 260, 260, random);
      s.batch = 3;
      s.backward = backward;
      s.lse = s.lse || backward;
      draw_variable_lengths(s, random);
      Case c(s, random);
      EXPECT_GT(expect_all_kernels_verified(c), 0);
    }
  }
}

// A view whose rows, heads and sequences lie apart, and the same mask without gaps.
TEST(MaskTiles, StridedMasksGiveTheSameBits) {
  Random random(9750);
  for (const KeepPattern pattern : kPatterns) {
    CaseSpec s = masked_spec(pattern, 150, 290, random);
    s.keep_broadcast = {};
    Case c(s, random);
    const Tensor dense = c.tensors.keep_mask;
    const int64_t row = s.seqlen_k + 13, head = s.seqlen_q * row + 5,
                  batch = s.num_heads * head + 3;
    std::vector<uint8_t> gaps(static_cast<std::size_t>(s.batch * batch), 7);
    Tensor strided = dense;
    strided.data = gaps.data();
    strided.strides = {batch, head, row, 1};
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.num_heads; ++h) {
        for (int64_t i = 0; i < s.seqlen_q; ++i) {
          std::memcpy(gaps.data() + b * batch + h * head + i * row,
                      static_cast<const uint8_t*>(dense.data) + b * dense.strides[0] +
                          h * dense.strides[1] + i * dense.strides[2],
                      static_cast<std::size_t>(s.seqlen_k));
        }
      }
    }
    for (const std::string& kernel : kernels_for(c.problem())) {
      c.tensors.keep_mask = dense;
      ASSERT_TRUE(run_kernel(c, kernel).ok());
      const std::vector<float> expected = c.output_values();
      c.tensors.keep_mask = strided;
      ASSERT_TRUE(run_kernel(c, kernel).ok());
      EXPECT_TRUE(same_bits(c.output_values(), expected)) << kernel << ' ' << to_string(s);
    }
  }
}

// The summary is made by several workers: the mask is bigger than what one reads alone.
TEST(MaskTiles, BitEqualForAnyNumberOfThreads) {
  Random random(9760);
  for (const KeepPattern pattern : kPatterns) {
    for (const bool backward : {false, true}) {
      CaseSpec s = masked_spec(pattern, 300, 300, random);
      s.backward = backward;
      s.lse = s.lse || backward;
      Case c(s, random);
      for (const std::string& kernel : kernels_for(c.problem())) {
        AttentionOptions options = c.options;
        options.num_threads = 1;
        ASSERT_TRUE(run_kernel(c, kernel, options).ok());
        const std::vector<float> expected = c.output_values();
        for (const int threads : {2, 3, 7}) {
          options.num_threads = threads;
          ASSERT_TRUE(run_kernel(c, kernel, options).ok());
          EXPECT_TRUE(same_bits(c.output_values(), expected))
              << kernel << " on " << threads << " threads " << to_string(s);
        }
        options.parallel_for = {run_in_reverse, nullptr};
        ASSERT_TRUE(run_kernel(c, kernel, options).ok());
        EXPECT_TRUE(same_bits(c.output_values(), expected)) << kernel << ' ' << to_string(s);
      }
    }
  }
}

}  // namespace
}  // namespace fulmen::testing

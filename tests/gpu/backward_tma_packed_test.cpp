// The backward pass whose tiles the TMA loads, of packed sequences: boxes that cross a sequence's
// end have the next one's rows, and blocks of keys come from a table that the device makes.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "gpu/gpu_devices.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

class GpuBackwardTmaPacked : public HopperTest {
 protected:
  GpuBackwardTmaPacked() : HopperTest("backward_tma", true) {}
  CaseSpec packed_spec(DType dtype, int64_t head_dim, int64_t batch, int64_t seqlen_q,
                       int64_t seqlen_k, Random& random) const {
    CaseSpec s = spec_of(dtype, head_dim, seqlen_q, seqlen_k, random);
    s.batch = batch;
    s.packed_q = s.packed_k = true;
    return s;
  }
  // Sums in order, or as blocks come.
  void check(const CaseSpec& spec, Random& random, std::size_t shift = 0) const {
    if (!drawn(3)) return;
    Case c(spec, random);
    c.options.deterministic = random.chance(0.5);
    EXPECT_TRUE(verified(c, kernel(), {device(), shift}))
        << to_string(spec) << ", deterministic " << c.options.deterministic;
  }
};

// Sequences of several tiles, of one row and of none, for each width of heads and layout; one side
// may have one length.
TEST_P(GpuBackwardTmaPacked, Lengths) {
  Random random(8300);
  for (const int64_t dim : {64, 128, 80, 104, 256, 136}) {
    CaseSpec s = packed_spec(dim == 128 ? DType::fp16 : DType::bf16, dim, random.between(2, 5),
                             random.between(129, 260), random.between(129, 300), random);
    s.num_heads = 2;
    s.num_kv_heads = random.between(1, 2);
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd});
    check(s, random);
    s.causal = random.pick({Causal::bottom_right, Causal::top_left});
    check(s, random);
    s.packed_q = random.chance(0.5);
    s.packed_k = !s.packed_q;
    check(s, random);
  }
  check(packed_spec(DType::bf16, 128, 6, 1, 40, random), random);
  check(packed_spec(DType::bf16, 64, 6, 70, 1, random), random);
  // More sequences than the workgroup that makes the table has lanes.
  CaseSpec many = packed_spec(DType::bf16, 64, 150, 12, 20, random);
  many.causal = Causal::bottom_right;
  check(many, random);
}

// Bands that a block, or a warpgroup, does not meet; sequences with more queries than keys, and
// with fewer; keys that no query attends are NaN.
TEST_P(GpuBackwardTmaPacked, Bands) {
  Random random(8310);
  for (const int64_t dim : {64, 128, 256}) {
    CaseSpec s = packed_spec(DType::bf16, dim, 3, 300, 180, random);
    s.num_heads = 2;
    s.num_kv_heads = 1;
    s.nan_in_masked = true;
    s.causal = random.pick({Causal::bottom_right, Causal::top_left});
    check(s, random);
    std::swap(s.seqlen_q, s.seqlen_k);
    s.window_left = random.between(0, 90);
    check(s, random);
    s.causal = Causal::none;
    s.window_right = random.between(0, 20);
    check(s, random);
  }
  // Queries without keys, whose log-sum-exp is finite by a sink.
  CaseSpec s = packed_spec(DType::bf16, 64, 3, 300, 70, random);
  s.causal = Causal::bottom_right;
  s.sinks = true;
  check(s, random);
}

TEST_P(GpuBackwardTmaPacked, Features) {
  Random random(8320);
  CaseSpec s = packed_spec(DType::fp16, 40, 3, 150, 190, random);
  s.head_dim_v = 72;
  s.softcap = 20;
  s.sinks = s.dlse = true;
  check(s, random);
  s = packed_spec(DType::bf16, 128, 2, 140, 150, random);
  s.alibi = 2;
  s.bias = true;
  s.bias_dtype = random.pick({DType::fp32, DType::bf16});
  s.gradients[3] = false;
  s.dropout = 0.3F;
  s.causal = Causal::bottom_right;
  check(s, random);
  check(s, random, 1);  // tensors at no multiple of 16 bytes: backward_wgmma's code
  s = packed_spec(DType::bf16, random.pick({64, 128, 192}), 3, 140, 190, random);
  s.keep = s.nan_in_masked = true;
  s.keep_broadcast = {random.chance(0.5), random.chance(0.5), false};
  check(s, random);
  for (const bool dk : {true, false}) {
    s = packed_spec(DType::fp16, dk ? 64 : 192, 3, 70, 140, random);
    s.gradients = {true, dk, !dk, false, false};
    check(s, random);
  }
  s = packed_spec(DType::bf16, 192, 2, 140, 150, random);
  s.head_dim_v = 64;
  s.alibi = 1;
  s.dropout = 0.2F;
  s.softcap = 20;
  s.dlse = true;
  s.window_left = random.between(20, 90);
  check(s, random);
}

// More blocks than workgroups, in whole sequences and in halves of them.
TEST_P(GpuBackwardTmaPacked, OrderOfSums) {
  Random random(8330);
  for (const int64_t dim : {64, 128, 256}) {
    for (const bool deterministic : {true, false}) {
      CaseSpec s = packed_spec(DType::bf16, dim, 4, random.between(300, 600),
                               random.between(400, 700), random);
      s.num_heads = s.num_kv_heads = 2;
      s.causal = random.pick({Causal::none, Causal::bottom_right, Causal::top_left});
      if (!drawn(3)) continue;
      Case c(s, random);
      c.options.deterministic = deterministic;
      EXPECT_TRUE(verified(c, kernel(), {device()}))
          << to_string(s) << ", deterministic " << deterministic;
      if (!deterministic) continue;
      const std::vector<float> first = c.output_values();
      ASSERT_TRUE(run_kernel(c, kernel(), Where{device()}).ok());
      const std::vector<float> second = c.output_values();
      EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0)
          << "in order, but other bits: " << to_string(s);
    }
  }
}

// A sequence of NaN makes NaN of no other one's gradients: their bits stay.
TEST_P(GpuBackwardTmaPacked, NanStaysInItsSequence) {
  Random random(8340);
  for (const int64_t dim : {64, 128, 256}) {
    CaseSpec s = packed_spec(DType::bf16, dim, 3, 150, 170, random);
    s.causal = random.pick({Causal::none, Causal::bottom_right, Causal::top_left});
    s.even_lengths = true;  // no multiples of a tile: boxes cross both ends
    Case c(s, random);
    const auto run = [&] {
      const Status status = run_kernel(c, kernel(), Where{device()});
      EXPECT_TRUE(status.ok()) << status.message();
    };
    const auto is_of_middle = [](const Tensor& cu, int64_t row) {
      const int* rows = static_cast<const int*>(cu.data);
      return row >= rows[1] && row < rows[2];
    };
    const auto bits = [&](const Tensor& gradient, const Tensor& cu) {
      const int* rows = static_cast<const int*>(cu.data);
      std::vector<float> values;
      for (int64_t row = rows[0]; row < rows[3]; ++row) {
        for (int64_t d = 0; d < gradient.shape[3]; ++d) {
          if (!is_of_middle(cu, row)) values.push_back(Case::get(gradient, {0, row, 0, d}));
        }
      }
      return values;
    };
    const auto all = [&] {
      const AttentionTensors& t = c.tensors;
      return std::vector{bits(t.dq, t.cu_seqlens_q), bits(t.dk, t.cu_seqlens_k),
                         bits(t.dv, t.cu_seqlens_k)};
    };
    run();
    const auto before = all();
    for (const auto& [tensor, cu] : {std::pair{c.tensors.q, c.tensors.cu_seqlens_q},
                                     {c.tensors.dout, c.tensors.cu_seqlens_q},
                                     {c.tensors.out, c.tensors.cu_seqlens_q},
                                     {c.tensors.k, c.tensors.cu_seqlens_k},
                                     {c.tensors.v, c.tensors.cu_seqlens_k}}) {
      for (int64_t row = 0; row < tensor.shape[1]; ++row) {
        for (int64_t d = 0; is_of_middle(cu, row) && d < tensor.shape[3]; ++d)
          Case::set(tensor, {0, row, 0, d}, std::numeric_limits<float>::quiet_NaN());
      }
    }
    run();
    EXPECT_EQ(all(), before) << to_string(s);
  }
}

// It is chosen by the mean lengths, whatever the longest sequence may have.
TEST_P(GpuBackwardTmaPacked, IsChosenForLongSequences) {
  Random random(8350);
  CaseSpec s = packed_spec(DType::bf16, 128, 2, 64, 64, random);
  s.num_heads = s.num_kv_heads = 2;  // strides of all dimensions
  s.causal = Causal::bottom_right;
  Problem p = Case(s, random).problem();
  p.batch = 16;
  p.num_heads = p.num_kv_heads = 16;
  for (const int64_t mean : {32, 64, 1024}) {
    p.total_q = p.total_k = 16 * mean;
    p.seqlen_q = p.seqlen_k = 2048;
    for (const bool deterministic : {true, false}) {
      p.deterministic = deterministic;
      const Result<Plan> planned = plan(p, device());
      ASSERT_TRUE(planned.ok()) << planned.status().message();
      EXPECT_EQ(planned->config().kernel == kernel(), mean >= 64) << planned->explain();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, GpuBackwardTmaPacked, ::testing::ValuesIn(hopper_devices()),
                         test_name);

}  // namespace
}  // namespace fulmen::testing

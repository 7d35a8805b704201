// The oracle's gradients against numeric differentiation of the oracle's forward pass, and every
// backward kernel against the oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "algorithm/philox.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

CaseSpec small_spec() {
  CaseSpec s;
  s.batch = 2;
  s.seqlen_q = 5;
  s.seqlen_k = 7;
  s.num_heads = 4;
  s.num_kv_heads = 2;
  s.head_dim = 6;
  s.head_dim_v = 3;
  s.backward = true;
  s.dlse = true;
  return s;
}

// Body(index) in row-major order.
template <class Body>
void for_each(const Problem::Shape& shape, const Body& body) {
  for (int64_t a = 0; a < shape[0]; ++a) {
    for (int64_t b = 0; b < shape[1]; ++b) {
      for (int64_t c = 0; c < shape[2]; ++c) {
        for (int64_t d = 0; d < shape[3]; ++d) body(std::array<int64_t, 4>{a, b, c, d});
      }
    }
  }
}

std::size_t elements(const Problem::Shape& s) {
  return static_cast<std::size_t>(s[0] * s[1] * s[2] * s[3]);
}
std::size_t elements(const Tensor& t) { return elements(t.shape); }

// sum(out * dout) + sum(lse * dlse), in double. Packed rows that belong to no sequence have dout
// NaN.
double loss(const Case& c) {
  const Problem p = c.problem();
  std::vector<double> out(elements(p.out_shape())), lse(elements(p.lse_shape()));
  EXPECT_TRUE(attention_reference(p, c.tensors, out.data(), lse.data()).ok());
  double sum = 0;
  std::size_t at = 0;
  for_each(p.out_shape(), [&](const auto& index) {
    const auto dout = static_cast<double>(Case::get(c.tensors.dout, index));
    if (!std::isnan(dout)) sum += out[at] * dout;
    ++at;
  });
  at = 0;
  for_each(p.dlse.present ? p.lse_shape() : Problem::Shape{}, [&](const auto& index) {
    if (std::isfinite(lse[at]))
      sum += lse[at] * static_cast<double>(Case::get(c.tensors.dlse, index));
    ++at;
  });
  return sum;
}

// Steps a few elements of an input; `exact` has its shape, row-major.
void expect_slopes(const Case& c, const char* name, const Tensor& input,
                   const std::vector<double>& exact, Random& random) {
  for (int n = 0; n < 12; ++n) {
    std::array<int64_t, 4> at{};
    int64_t flat = 0;
    for (std::size_t d = 0; d < 4; ++d) {
      at[d] = random.between(0, input.shape[d] - 1);
      flat = flat * input.shape[d] + at[d];
    }
    // Exact to add to numbers of a few binary digits, which fp32 inputs are rounded to here.
    constexpr float kStep = 1.0F / 512;
    const float value = std::round(Case::get(input, at) * 512) / 512;
    Case::set(input, at, value + kStep);
    const double above = loss(c);
    Case::set(input, at, value - kStep);
    const double below = loss(c);
    Case::set(input, at, value);
    const double slope = (above - below) / (2 * static_cast<double>(kStep));
    EXPECT_NEAR(exact[static_cast<std::size_t>(flat)], slope, 2e-3 * (1 + std::fabs(slope)))
        << name << "[" << at[0] << ", " << at[1] << ", " << at[2] << ", " << at[3] << "] "
        << to_string(c.spec);
  }
}

void expect_numeric(const CaseSpec& spec, uint64_t stream) {
  Random random(stream);
  const Case c(spec, random);
  const AttentionTensors& t = c.tensors;
  // The inputs rounded as expect_slopes does, so that the gradients are of the same point.
  for (const Tensor* input : {&t.q, &t.k, &t.v, &t.bias, &t.sinks}) {
    for (std::size_t n = 0; n < elements(*input); ++n) {
      auto rest = static_cast<int64_t>(n);
      std::array<int64_t, 4> at{};
      for (std::size_t d = 4; d-- > 0;) {
        at[d] = rest % input->shape[d];
        rest /= input->shape[d];
      }
      Case::set(*input, at, std::round(Case::get(*input, at) * 512) / 512);
    }
  }
  std::vector<double> dq(elements(t.q)), dk(elements(t.k)), dv(elements(t.v)),
      dbias(elements(t.bias)), dsinks(elements(t.sinks));
  const ReferenceGradients gradients{dq.data(), dk.data(), dv.data(),
                                     spec.bias ? dbias.data() : nullptr,
                                     spec.sinks ? dsinks.data() : nullptr};
  ASSERT_TRUE(attention_backward_reference(c.problem(), t, gradients).ok());
  expect_slopes(c, "q", t.q, dq, random);
  expect_slopes(c, "k", t.k, dk, random);
  expect_slopes(c, "v", t.v, dv, random);
  if (spec.bias) expect_slopes(c, "bias", t.bias, dbias, random);
  if (spec.sinks) expect_slopes(c, "sinks", t.sinks, dsinks, random);
}

TEST(OracleGradients, EqualNumericDifferentiation) {
  CaseSpec s = small_spec();
  expect_numeric(s, 700);
  s.softcap = 2;
  expect_numeric(s, 701);
  s = small_spec();
  s.bias = true;
  expect_numeric(s, 702);
  for (std::size_t d = 0; d < 3; ++d) {
    s.bias_broadcast[d] = true;
    expect_numeric(s, 703 + d);
  }
  s.softcap = 2;
  expect_numeric(s, 706);
  s = small_spec();
  s.keep = true;
  expect_numeric(s, 707);
  s.causal = Causal::bottom_right;
  expect_numeric(s, 708);
  s.causal = Causal::top_left;
  expect_numeric(s, 709);
  s = small_spec();
  s.window_left = 2;
  s.window_right = 1;
  expect_numeric(s, 710);
  s.alibi = 2;
  expect_numeric(s, 711);
  s.sinks = true;
  expect_numeric(s, 712);
  s.dropout = 0.4F;
  expect_numeric(s, 713);
  s.keep = s.bias = true;
  s.softcap = 3;
  s.scale = -0.4F;
  expect_numeric(s, 714);
  s.dlse = false;
  expect_numeric(s, 715);
  s = small_spec();
  s.batch = 4;
  s.packed_q = s.packed_k = true;
  expect_numeric(s, 716);
  s.causal = Causal::bottom_right;
  s.alibi = 2;
  s.sinks = true;
  s.dropout = 0.3F;
  expect_numeric(s, 717);
  s.packed_q = false;
  s.window_left = 2;
  expect_numeric(s, 718);
  s.packed_k = false;
  s.packed_q = true;
  s.causal = Causal::top_left;
  expect_numeric(s, 719);
}

// Each option by itself, and each layout.
TEST(OracleGradients, EqualNumericDifferentiationOfOneOption) {
  const auto expect = [](uint64_t stream, const auto& change) {
    CaseSpec s = small_spec();
    change(s);
    expect_numeric(s, stream);
  };
  expect(720, [](CaseSpec& s) { s.sinks = true; });
  expect(721, [](CaseSpec& s) { s.dropout = 0.4F; });
  expect(722, [](CaseSpec& s) { s.alibi = 2; });
  expect(723, [](CaseSpec& s) { s.causal = Causal::bottom_right; });
  expect(724, [](CaseSpec& s) { s.causal = Causal::top_left; });
  expect(725, [](CaseSpec& s) { s.window_left = 2; });
  expect(726, [](CaseSpec& s) { s.window_right = 1; });
  expect(727, [](CaseSpec& s) { s.scale = -0.4F; });
  expect(728, [](CaseSpec& s) { s.dlse = false; });
  expect(729, [](CaseSpec& s) { s.num_kv_heads = 4; });
  expect(730, [](CaseSpec& s) { s.num_kv_heads = 1; });
  for (std::size_t d = 0; d < 3; ++d) {
    expect(731 + d, [&](CaseSpec& s) { s.bias = s.bias_broadcast[d] = true; });
  }
  uint64_t stream = 740;
  for (const Layout layout :
       {Layout::bhsd, Layout::sbhd, Layout::packed_qkv, Layout::odd_strides}) {
    expect(stream++, [&](CaseSpec& s) {
      s.layout = layout;
      if (layout != Layout::packed_qkv) return;
      s.seqlen_k = s.seqlen_q;
      s.num_kv_heads = s.num_heads;
      s.head_dim_v = s.head_dim;
    });
  }
}

// How many random cases: the same for every kernel.
int cases() { return 40; }

TEST(Gradients, CasesOfAnyFeatures) {
  for (int n = 0; n < cases(); ++n) {
    Random random(800 + static_cast<uint64_t>(n));
    Case c(random_backward_spec(random), random);
    EXPECT_GT(expect_all_kernels_verified(c), 0);
  }
}

// The published vectors (Random123's kat_vectors, philox4x32 with 10 rounds).
TEST(Dropout, PhiloxOfKnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  const auto expect = [](const Words& c, uint32_t key0, uint32_t key1, const Words& want) {
    const auto keys = algorithm::PhiloxKeys::of(key0, key1);
    const auto got = algorithm::Philox::of(c[0], c[1], c[2], c[3], keys);
    for (std::size_t n = 0; n < 4; ++n) EXPECT_EQ(got.word[n], want[n]) << n;
  };
  expect({0, 0, 0, 0}, 0, 0, {0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8});
  constexpr uint32_t kOnes = 0xFFFFFFFF;
  expect({kOnes, kOnes, kOnes, kOnes}, kOnes, kOnes,
         {0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD});
  expect({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, 0xA4093822, 0x299F31D0,
         {0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1});
}

TEST(Dropout, MaskIsBinomialAndForgetsNothing) {
  Random random(900);
  for (const float probability : {0.02F, 0.1F, 0.5F, 0.97F}) {
    CaseSpec s = small_spec();
    s.seqlen_q = 203;
    s.seqlen_k = 310;
    s.dropout = probability;
    s.backward = false;
    const Case c(s, random);
    const Problem p = c.problem();
    std::vector<uint8_t> keep(
        static_cast<std::size_t>(p.batch * p.num_heads * p.seqlen_q * p.seqlen_k)),
        again(keep.size());
    ASSERT_TRUE(dropout_mask(p, c.tensors, keep.data()).ok());
    double kept = 0;
    for (const uint8_t one : keep) kept += one;
    const auto count = static_cast<double>(keep.size());
    EXPECT_NEAR(kept, count * (1 - static_cast<double>(probability)),
                5 * std::sqrt(count * static_cast<double>(probability * (1 - probability))) +
                    count / 65536);
    AttentionTensors other = c.tensors;
    for (uint64_t* part : {&other.dropout_seed, &other.dropout_offset}) {
      for (const int bit : {0, 31, 32, 63}) {
        *part ^= uint64_t{1} << static_cast<unsigned>(bit);
        ASSERT_TRUE(dropout_mask(p, other, again.data()).ok());
        EXPECT_NE(keep, again) << "bit " << bit;
        *part ^= uint64_t{1} << static_cast<unsigned>(bit);
      }
    }
    ASSERT_TRUE(dropout_mask(p, other, again.data()).ok());
    EXPECT_EQ(keep, again);
  }
}

}  // namespace
}  // namespace fulmen::testing

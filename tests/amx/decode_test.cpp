// Decode on emulated tiles.
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

class EmulatedAmxDecode : public EmulatedAmx {
 protected:
  static const char* kernel_of(const Case& c) {
    return c.spec.dtype == DType::bf16 ? "cpu.decode.amx_emulated" : "cpu.decode.amx_fp16_emulated";
  }
  void check(CaseSpec spec, Random& random) {
    if (!drawn()) return;
    spec.dtype = random.pick({DType::bf16, DType::bf16, DType::fp16});
    Case c(spec, random);
    c.options.num_threads = 2;
    EXPECT_TRUE(verified(c, kernel_of(c), {"amx_emulated"})) << to_string(spec);
  }
  // Up to 64 rows share a KV head; heads that are streamed together, or lie apart, or are more than
  // a task has slots for.
  static CaseSpec any_rows(Random& random) {
    static constexpr std::pair<int, int> kQueriesAndGroup[] = {
        {1, 1}, {1, 4}, {1, 5}, {3, 4}, {1, 16}, {17, 1}, {5, 4}, {11, 3}, {8, 8}, {64, 1}};
    const auto [queries, group] =
        kQueriesAndGroup[random.between(0, std::size(kQueriesAndGroup) - 1)];
    CaseSpec s;
    s.batch = random.between(1, 2);
    s.seqlen_q = queries;
    s.num_kv_heads = random.pick<int64_t>({1, 2, 3, 9});
    s.num_heads = s.num_kv_heads * group;
    s.seqlen_k = random.pick<int64_t>({random.between(1, 70), random.between(1, 400), 64});
    s.head_dim = random.pick<int64_t>({32, 64, random.between(1, 140)});
    s.head_dim_v = random.pick<int64_t>({s.head_dim, random.between(1, 140)});
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::odd_strides});
    s.lse = random.chance(0.5);
    s.nan_in_masked = true;
    return s;
  }
};

TEST_F(EmulatedAmxDecode, AnyShape) {
  Random random(8300);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 60; ++i) check(any_rows(random), random);
}

TEST_F(EmulatedAmxDecode, WidestHeads) {
  Random random(8310);
  SCOPED_TRACE(test_seed());
  for (const int64_t head_dim : {128, 160, 192, 255, 256, 300, 512})
    check(two_heads(3, 150, head_dim), random);
  CaseSpec latent = two_heads(1, 150, 576);
  latent.num_kv_heads = 1;
  latent.num_heads = 128;  // two groups of 64
  latent.head_dim_v = 512;
  check(latent, random);
}

TEST_F(EmulatedAmxDecode, Masks) {
  Random random(8320);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 40; ++i) {
    CaseSpec s = any_rows(random);
    s.keep = random.chance(0.5);
    s.causal = random.pick({Causal::none, Causal::bottom_right, Causal::top_left});
    if (random.chance(0.5)) s.window_left = random.between(0, 200);
    s.bias = random.chance(0.3);
    s.bias_dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
    s.alibi = static_cast<int>(random.between(0, 2));
    s.sinks = random.chance(0.3);
    s.softcap = random.pick({0.0F, 0.0F, 5.0F});
    check(s, random);
  }
}

// A row of NaN has NaN for the probabilities of masked keys, too.
TEST_F(EmulatedAmxDecode, NanInARowAndInMaskedValues) {
  Random random(25);
  SCOPED_TRACE(test_seed());
  for (const int64_t queries : {1, 5, 16}) {
    CaseSpec spec = two_heads(queries, 150, 32);
    spec.dtype = DType::bf16;
    spec.keep = true;
    Case c(spec, random);
    c.mask_key(70);
    Case::set(c.tensors.v, {0, 70, 0, 4}, NAN);
    Case::set(c.tensors.q, {0, queries / 2, 1, 3}, NAN);
    EXPECT_TRUE(verified(c, kernel_of(c), {"amx_emulated"})) << to_string(spec);
  }
}

TEST_F(EmulatedAmxDecode, PagesAndLengths) {
  Random random(8330);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 30; ++i) {
    CaseSpec s = any_rows(random);
    s.layout = Layout::bshd;
    s.packed_q = random.chance(0.3);
    s.used_k = true;
    if (random.chance(0.6)) s.page_size = random.pick<int64_t>({16, 32, 64, random.between(1, 70)});
    s.leftpad_k = random.chance(0.3);
    check(s, random);
  }
}

// Tiles of keys whose first and last rows lie as if those between did, too.
TEST_F(EmulatedAmxDecode, PagesSwappedWithinATile) {
  Random random(8360);
  SCOPED_TRACE(test_seed());
  for (const int64_t page_size : {1, 2, 4, 5, 8, 16}) {
    for (const int64_t swapped : {1, 2, 5}) {
      CaseSpec s;
      s.dtype = DType::bf16;
      s.num_kv_heads = random.pick<int64_t>({1, 2});
      s.num_heads = 5 * s.num_kv_heads;
      s.seqlen_k = 96;
      s.head_dim = s.head_dim_v = 32;
      s.used_k = s.even_lengths = true;
      s.page_size = page_size;
      Case c(s, random);
      const Problem p = c.problem();
      auto* pages = static_cast<int*>(c.tensors.block_table.data);
      const auto count = static_cast<std::ptrdiff_t>(p.seqlen_k / page_size);
      std::sort(pages, pages + count);
      if (swapped + 1 < count) std::swap(pages[swapped], pages[swapped + 1]);
      EXPECT_TRUE(verified(c, kernel_of(c), {"amx_emulated"})) << to_string(s);
    }
  }
}

// Keys' heads lie side by side, values' apart: nothing is streamed together.
TEST_F(EmulatedAmxDecode, ValuesOfAnotherLayout) {
  Random random(8370);
  SCOPED_TRACE(test_seed());
  CaseSpec s;
  s.dtype = DType::bf16;
  s.num_kv_heads = 4;
  s.num_heads = 20;
  s.seqlen_k = 300;
  s.head_dim = s.head_dim_v = 64;
  Case c(s, random);
  Tensor& v = c.tensors.v;  // the same memory, read as [batch, head, seqlen, dim]
  v = Tensor::bhsd(v.data, v.dtype, s.batch, s.seqlen_k, s.num_kv_heads, s.head_dim_v);
  EXPECT_TRUE(verified(c, kernel_of(c), {"amx_emulated"}));
  for (const char* kernel : {"cpu.decode.avx512", "cpu.decode.avx2", "cpu.decode.scalar"})
    EXPECT_TRUE(verified(c, kernel, {"cpu"})) << kernel;
}

// Several splits, whose results are merged, by any number of threads.
TEST_F(EmulatedAmxDecode, LongKeys) {
  Random random(8340);
  SCOPED_TRACE(test_seed());
  for (const int64_t group : {1, 4, 20}) {
    CaseSpec s;
    s.dtype = DType::bf16;
    s.num_kv_heads = 2;
    s.num_heads = 2 * group;
    s.seqlen_k = random.between(2100, 3300);
    s.head_dim = s.head_dim_v = 64;
    Case c(s, random);
    c.options.num_threads = 1;
    ASSERT_TRUE(verified(c, kernel_of(c), {"amx_emulated"}));
    const std::vector<float> one = c.output_values();
    c.options.num_threads = 3;
    ASSERT_TRUE(run_kernel(c, kernel_of(c), {"amx_emulated"}).ok());
    const std::vector<float> three = c.output_values();
    EXPECT_EQ(std::memcmp(one.data(), three.data(), one.size() * sizeof(float)), 0) << to_string(s);
  }
}

// More rows than a KV head may have are refused, with the number that is served.
TEST_F(EmulatedAmxDecode, TooManyRows) {
  Random random(8350);
  CaseSpec s = two_heads(33, 100, 32);
  s.num_kv_heads = 2;  // a single one may be shared by more
  s.num_heads = 4;
  s.dtype = DType::bf16;
  Case c(s, random);
  const Status status = run_kernel(c, kernel_of(c), {"amx_emulated"});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("66 query rows share a KV head"), std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("at most 64"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace fulmen::testing

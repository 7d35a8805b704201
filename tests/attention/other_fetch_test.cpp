// Decode and short sequences prefetch in one of two ways, by the processor (cpu/decode/prefetch.h,
// cpu/short/vector.h, cpu/backward/unit.h). These tests run the other way, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cpu/families.h"
#include "cpu/isa/instruction_sets.h"
#include "support/cpu_backend.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

constexpr const char* kDevice = "other_fetch";

class OtherFetch final : public CpuBackend {
 public:
  OtherFetch() : CpuBackend(kDevice, "this processor") {
    for (const cpu::InstructionSet& isa : cpu::instruction_sets()) {
      const std::string name = isa.table->name;
      // The others have one way.
      if (!isa.available || (name != "avx512" && name != "avx512_bf16")) continue;
      auto& [set, table] = *sets_.emplace_back(std::make_unique<Set>(Set{isa, *isa.table}));
      table.name = name == "avx512" ? "avx512_other_fetch" : "avx512_bf16_other_fetch";
      set.table = &table;
      set.fetch_blocks = !isa.fetch_blocks;
      add(cpu::make_kernel("decode", set));
      add(cpu::make_kernel("short", set));
      add(cpu::make_kernel("backward", set));
    }
  }

 private:
  struct Set {
    cpu::InstructionSet set;
    cpu::IsaTable table;
  };
  std::vector<std::unique_ptr<Set>> sets_;
};

class OtherFetchTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    static bool registered = false;
    if (registered) return;
    const auto backend = std::make_shared<OtherFetch>();
    has_both_ways_ = !backend->kernels().empty();
    const Status status = register_backend(backend);
    ASSERT_TRUE(status.ok()) << status.message();
    registered = true;
  }
  void SetUp() override {
    if (!has_both_ways_)
      GTEST_SKIP() << "this processor lacks AVX-512, whose code alone has both ways";
  }
  // Few queries over keys that take several blocks and end within one.
  static CaseSpec spec_of(Random& random) {
    CaseSpec s;
    s.dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
    s.batch = random.between(1, 2);
    s.seqlen_q = random.pick<int64_t>({1, random.between(1, 3), random.between(1, 12)});
    s.num_kv_heads = random.between(1, 5);
    s.num_heads = s.num_kv_heads * random.between(1, 5);
    if (random.chance(0.3)) s.seqlen_q = random.between(1, 64 * s.num_kv_heads / s.num_heads);
    s.seqlen_k = random.between(1, 1400);
    s.head_dim = random.between(1, 140);
    s.head_dim_v = random.between(0, 1) == 0 ? s.head_dim : random.between(1, 140);
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::odd_strides});
    s.nan_in_masked = true;
    return s;
  }
  static void check(const CaseSpec& s, Random& random) {
    Case c(s, random);
    ASSERT_GT(expect_all_kernels_verified(c, Where{kDevice}), 0) << to_string(s);
  }

 private:
  static inline bool has_both_ways_ = false;
};

TEST_F(OtherFetchTest, Decode) {
  Random random(8100);
  for (int i = 0; i < 40; ++i) check(spec_of(random), random);
}

TEST_F(OtherFetchTest, DecodeWithMasks) {
  Random random(8110);
  for (int i = 0; i < 20; ++i) {
    CaseSpec s = spec_of(random);
    if (i % 2 == 0) s.keep = true;
    if (i % 3 == 0) s.causal = random.pick({Causal::bottom_right, Causal::top_left});
    if (i % 3 == 1) s.window_left = random.between(0, 900);
    if (i % 4 == 0) s.bias = true;
    if (i % 5 == 0) s.sinks = true;
    check(s, random);
  }
}

TEST_F(OtherFetchTest, DecodeOfPagesAndLengths) {
  Random random(8120);
  for (int i = 0; i < 20; ++i) {
    CaseSpec s = spec_of(random);
    s.layout = Layout::bshd;
    s.used_k = true;
    if (i % 2 == 0) s.page_size = random.between(1, 70);
    if (i % 3 == 0) s.leftpad_k = true;
    check(s, random);
  }
}

// Sequences so many that a worker takes whole ones, and so small that two fit the level-2 cache.
// prefetch_test.cpp checks what is fetched; this test checks that nothing else changes, and serves
// the sanitizers.
TEST_F(OtherFetchTest, ShortSequences) {
  Random random(8130);
  for (int i = 0; i < 30; ++i) {
    CaseSpec s = spec_of(random);
    s.batch = random.between(6, 9);
    s.seqlen_q = random.pick<int64_t>({64, random.between(1, 64), random.between(65, 150)});
    s.seqlen_k = random.pick<int64_t>({64, random.between(1, 128)});
    s.num_kv_heads = random.between(1, 3);
    s.num_heads = s.num_kv_heads * random.between(1, 3);
    s.layout = random.pick(
        {Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::packed_qkv, Layout::odd_strides});
    if (s.layout == Layout::packed_qkv) {  // which asks for equal shapes
      s.seqlen_k = s.seqlen_q = std::min(s.seqlen_k, s.seqlen_q);
      s.num_kv_heads = s.num_heads;
      s.head_dim_v = s.head_dim;
    }
    s.bias = i % 2 == 0;
    s.bias_broadcast = {i % 4 == 0, i % 6 == 0, i % 10 == 0};
    Case c(s, random);
    c.options.num_threads = 1;
    ASSERT_GT(expect_all_kernels_verified(c, Where{kDevice}), 0) << to_string(s);
    expect_all_kernels_verified(c);
  }
}

// backward_prefetch_test.cpp checks what is fetched.
TEST_F(OtherFetchTest, Backward) {
  Random random(8140);
  for (int i = 0; i < 30; ++i) {
    CaseSpec s = random_backward_spec(random);
    s.batch = random.between(6, 9);
    s.seqlen_q = random.between(1, i % 5 == 0 ? 150 : 64);
    s.seqlen_k = random.between(1, 128);
    s.num_kv_heads = random.between(1, 6);
    s.num_heads = s.num_kv_heads * random.between(1, 2);
    s.layout = random.pick({Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::odd_strides});
    Case c(s, random);
    c.options.num_threads = 1;
    ASSERT_GT(expect_all_kernels_verified(c, Where{kDevice}), 0) << to_string(s);
  }
}

}  // namespace
}  // namespace fulmen::testing

// Products of codes whose keys lie in groups (cpu/tile/code_product.h): sums beside plain loops,
// and results beside those of codes in fp32, whose sums are exact as well; which of them an Arm
// processor has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu/isa/instruction_sets.h"
#include "fulmen/fulmen.h"
#include "quantized/code_sums.h"
#include "quantized/int8_emulated.h"
#include "support/attention_case.h"
#include "support/random.h"
#include "support/run_kernel.h"

namespace fulmen::testing {

void emulated_sdot_sums(const CodeSums& call);
void emulated_smmla_sums(const CodeSums& call);
void neon_dotprod_sums(const CodeSums& call);
void neon_i8mm_sums(const CodeSums& call);

namespace {

struct Sums {
  std::string_view set;
  void (*of)(const CodeSums&);
};

bool has_set(std::string_view name) {
  for (const cpu::InstructionSet& set : cpu::instruction_sets()) {
    if (name == set.table->name) return set.available;
  }
  return false;
}

// Those that this processor executes.
std::vector<Sums> all_sums() {
  std::vector<Sums> all{{"emulated sdot", emulated_sdot_sums},
                        {"emulated smmla", emulated_smmla_sums}};
#ifdef FULMEN_HAVE_ISA_NEON_DOTPROD
  if (has_set("neon_dotprod")) all.push_back({"neon_dotprod", neon_dotprod_sums});
#endif
#ifdef FULMEN_HAVE_ISA_NEON_I8MM
  if (has_set("neon_i8mm")) all.push_back({"neon_i8mm", neon_i8mm_sums});
#endif
  return all;
}

// A block of keys [keys][kBlockM] by plain loops; -1 where no sum is asked for.
std::vector<int32_t> plain_sums(const CodeSums& call, int keys) {
  std::vector<int32_t> sums(static_cast<std::size_t>(keys) * cpu::kBlockM, -1);
  for (int key = call.begin; key < call.end; ++key) {
    for (int row = 0; row < call.rows; ++row) {
      const int8_t* q = call.queries + static_cast<std::ptrdiff_t>(row) * call.dims;
      const int8_t* k = call.keys + static_cast<std::ptrdiff_t>(key) * call.dims;
      int32_t sum = 0;
      for (int d = 0; d < call.dims; ++d) sum += q[d] * k[d];
      sums[static_cast<std::size_t>(key * cpu::kBlockM + row)] = sum;
    }
  }
  return sums;
}

// Every byte may be a code here, -128 too, and what lies beside the codes is not 0.
TEST(Int8Groups, SumsAreThoseOfPlainLoops) {
  constexpr int kKeys = 128;
  Random random(48'200);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 16; ++i) {
    CodeSums call;
    call.rows = static_cast<int>(random.between(1, cpu::kBlockM));
    call.end = static_cast<int>(random.between(1, kKeys));
    call.begin =
        static_cast<int>(random.between(0, call.end - 1)) / cpu::kSpanKeys * cpu::kSpanKeys;
    call.dims = static_cast<int>(random.between(1, i == 0 ? 256 : 48));
    call.rest = 77;
    const auto codes = [&](int rows) {
      std::vector<int8_t> row(static_cast<std::size_t>(rows) * call.dims);
      for (int8_t& code : row) code = static_cast<int8_t>(random.between(-128, 127));
      return row;
    };
    const std::vector<int8_t> queries = codes(call.rows), keys = codes(call.end);
    call.queries = queries.data();
    call.keys = keys.data();
    const std::vector<int32_t> expected = plain_sums(call, kKeys);
    // As many words as units of two have, and whole groups.
    const auto words = static_cast<std::size_t>(cpu::round_up((call.dims + 3) / 4, 2));
    for (const Sums& sums : all_sums()) {
      std::vector<float> panel(words * cpu::kBlockM), groups(words * kKeys);
      std::vector<int32_t> found(expected.size(), -1);
      call.panel = panel.data();
      call.groups = groups.data();
      call.sums = found.data();
      sums.of(call);
      for (std::size_t n = 0; n < found.size(); ++n) {
        const auto key = static_cast<int>(n) / cpu::kBlockM,
                   row = static_cast<int>(n) % cpu::kBlockM;
        // Rows up to the next whole vectors get sums, too.
        if (key >= call.begin && key < call.end && row >= call.rows) continue;
        ASSERT_EQ(found[n], expected[n])
            << sums.set << " key " << key << " row " << row << " of " << call.rows << " dims "
            << call.dims << " keys " << call.begin << " to " << call.end;
      }
    }
  }
}

// Kernels that differ in the product of codes alone.
std::vector<std::pair<std::string, std::string>> same_numbers() {
#if defined(__aarch64__)
  return {{"cpu", "cpu.prefill_int8.neon"},
          {"cpu", "cpu.prefill_int8.neon_dotprod"},
          {"cpu", "cpu.prefill_int8.neon_i8mm"}};
#else
  return {{"cpu", "cpu.prefill_int8.scalar"},
          {kEmulated, "cpu.prefill_int8.sdot_emulated"},
          {kEmulated, "cpu.prefill_int8.smmla_emulated"}};
#endif
}

TEST(Int8Groups, BitsAreThoseOfCodesInFp32) {
  ASSERT_TRUE(register_emulated_int8());
  Random random(48'201);
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < 12; ++i) {
    CaseSpec spec;
    spec.batch = 1;
    spec.seqlen_q = random.between(1, 150);
    spec.seqlen_k = random.between(1, 400);
    spec.num_heads = 2;
    spec.num_kv_heads = 1;
    spec.head_dim = random.between(1, 130);
    spec.head_dim_v = 16;
    spec.precision = Precision::int8;
    spec.nan_in_masked = spec.huge_bias = false;
    spec.dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
    spec.causal = random.pick({Causal::none, Causal::bottom_right, Causal::top_left});
    spec.window_left = random.pick({int64_t{-1}, random.between(0, 100)});
    Case c(spec, random);
    std::vector<float> out, lse;
    for (const auto& [device, kernel] : same_numbers()) {
      const std::vector<std::string> served = kernels_for(c.problem(), device);
      if (std::find(served.begin(), served.end(), kernel) == served.end()) continue;
      ASSERT_TRUE(run_kernel(c, kernel, Where{device}).ok()) << kernel;
      if (out.empty()) {
        out = c.out_values();
        lse = c.lse_values();
      }
      EXPECT_TRUE(same_bits(c.out_values(), out)) << kernel << " " << to_string(spec);
      EXPECT_TRUE(same_bits(c.lse_values(), lse)) << kernel << " " << to_string(spec);
    }
    ASSERT_FALSE(out.empty());
  }
}

// By the processor that qemu is told to be (tests/CMakeLists.txt).
TEST(Int8Groups, SetsOfArmProcessors) {
  const char* set = std::getenv("QEMU_CPU");
  const std::string processor = set == nullptr ? "" : set;
#if defined(__aarch64__)
  const bool known = processor == "cortex-a72" || processor == "neoverse-n1" || processor == "max";
#else
  const bool known = false;
#endif
  if (!known) GTEST_SKIP() << "no known Arm processor: " << processor;
  EXPECT_EQ(has_set("neon_dotprod"), processor != "cortex-a72");
  EXPECT_EQ(has_set("neon_i8mm"), processor == "max");
  Random random(48'202);
  CaseSpec spec;
  spec.precision = Precision::int8;
  spec.nan_in_masked = spec.huge_bias = false;
  Case c(spec, random);
  const auto chosen = plan(make_problem(c.tensors, c.options).value(), "cpu", c.options);
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen.value().config().kernel, processor == "max" ? "cpu.prefill_int8.neon_i8mm"
                                            : processor == "neoverse-n1"
                                                ? "cpu.prefill_int8.neon_dotprod"
                                                : "cpu.prefill_int8.neon");
  if (processor == "max") return;
  AttentionOptions options = c.options;
  options.kernel = "cpu.prefill_int8.neon_i8mm";
  const Status refused = plan(make_problem(c.tensors, options).value(), "cpu", options).status();
  EXPECT_NE(refused.message().find("this processor lacks products of matrices of bytes (I8MM)"),
            std::string::npos)
      << refused.message();
}

}  // namespace
}  // namespace fulmen::testing

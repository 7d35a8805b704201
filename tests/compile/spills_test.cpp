// The shipped kernels of AMD chips compile without a warning, keep everything in registers, and
// read no lane that may be off.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "gpu/choice.h"
#include "gpu/compile/cache/cache.h"
#include "gpu/compile/report/amd_metadata.h"
#include "gpu/compile/report/report.h"
#include "gpu/compile/toolchains/first_llvm.h"
#include "gpu/launch/family.h"
#include "gpu/shipped.h"
#include "support/random.h"
#include "support/test_chips.h"

namespace fulmen::test {
namespace {

// All builds compile these kernels to the same code: one cache for them.
[[maybe_unused]] const bool kCacheIsSet =
    ::setenv("FULMEN_CACHE_DIR", FULMEN_SOURCE_DIR "/build/kernel-cache", 0) == 0;

// Every family, feature and head dim with bf16. fp16 differs in conversions only: it has the
// forward kernels with the highest register pressure, of head_dim 128, and the backward kernels of
// boards with a bias and without a band. A target's further chips have one head_dim. `fulmen
// compile --all` checks all.
bool chosen(const gpu::Specialisation& s, const gpu::Chip& chip) {
  if (chip.arch != chip.target->test_chips.front() && s.head_dim != 128) return false;
  const bool backward = s.entry.starts_with("backward") || s.entry.starts_with("short_backward");
  if (backward) return (s.tensor_dtype() == DType::bf16 && !s.band) || s.bias >= 0;
  return s.tensor_dtype() != DType::fp16 || chip.target->is_portable() ||
         (s.entry == "forward/prefill.h" && s.head_dim == 128);
}

// Scalar registers may be kept in lanes of a vector register, which costs no memory. Clang 22 keeps
// more of them there than 19, chips before gfx942 have six fewer, and on gfx906, without matrix
// units, masks of 64 lanes take two each.
int most_scalars_in_lanes(const gpu::Chip& chip) {
  if (chip.target->is_portable()) return 32;
  const bool scarce =
      gpu::first_llvm(chip.arch) > 19 || chip.arch == "gfx90a" || chip.arch == "gfx908";
  return scarce ? 64 : 24;
}

std::string what_is_wrong(const gpu::Compiler& compiler, const gpu::Chip& chip,
                          const gpu::CompileRequest& request) {
  const auto code = gpu::cached_compile(&compiler, {}, request);
  if (!code.ok()) return code.status().message();
  if (code->log.find("warning:") != std::string::npos) return code->log;
  const auto kernels = gpu::read_amd_metadata(code->code);
  if (!kernels.ok()) return kernels.status().message();
  const KernelReport report = gpu::report_on(chip, request, *code, 0);
  if (!report.loop_missing.empty()) return report.loop_missing;  // the machine code was not read
  if (!report.findings.empty())
    return fmt::format("{} {}: {}", request.arch, request.name, report.findings.front());
  const gpu::AmdKernelMetadata& k = kernels->front();
  if (k.vector_spills + k.scratch_bytes == 0 && k.scalar_spills <= most_scalars_in_lanes(chip))
    return {};
  return fmt::format("{} {}: {} vector and {} scalar registers spilled, {} bytes of scratch",
                     request.arch, request.name, k.vector_spills, k.scalar_spills, k.scratch_bytes);
}

class Spills : public testing::ChipTest {
 protected:
  static void expect_none(const gpu::Chip& chip, const std::vector<gpu::Specialisation>& kernels);
};

void Spills::expect_none(const gpu::Chip& chip, const std::vector<gpu::Specialisation>& kernels) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "what clang makes of kernels is looked at in builds without sanitizers";
#endif
  const auto compiler = gpu::offline_clang_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.status().message();
  std::vector<std::string> wrong(kernels.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t n = 0; (n = next.fetch_add(1)) < kernels.size();) {
      const auto request = compile_request(kernels[n], chip, gpu::Platform::amd);
      wrong[n] = request.ok() ? what_is_wrong(*compiler.value(), chip, request.value())
                              : request.status().message();
    }
  };
  std::vector<std::thread> threads(std::max(1U, std::thread::hardware_concurrency()) - 1);
  for (std::thread& thread : threads) thread = std::thread(work);
  work();
  for (std::thread& thread : threads) thread.join();
  for (const std::string& message : wrong) EXPECT_EQ(message, "");
}

TEST_P(Spills, NoShippedKernelHasAny) {
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip(GetParam(), storage, chip));
  std::vector<gpu::Specialisation> kernels = gpu::shipped_kernels(chip, true);
  std::erase_if(kernels, [&](const gpu::Specialisation& s) { return !chosen(s, chip); });
  // A kernel takes most of a second to compile and to read. A change of the kernels' source shows
  // in more than one of them.
  testing::Random random(std::hash<std::string>{}(GetParam()));
  SCOPED_TRACE("repeat it: FULMEN_TEST_SEED=" + std::to_string(testing::test_seed()));
  expect_none(chip, random.sample(kernels, (kernels.size() + 11) / 12));
}

// Chips without matrix instructions. These kernels are larger, and take longer.
class PortableSpills : public Spills {};

TEST_P(PortableSpills, NoShippedKernelHasAny) {
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip(GetParam(), storage, chip));
  std::vector<gpu::Specialisation> kernels = gpu::shipped_kernels(chip, true);
  std::erase_if(kernels, [&](const gpu::Specialisation& s) { return !chosen(s, chip); });
  testing::Random random(2 + std::hash<std::string>{}(GetParam()));
  SCOPED_TRACE("repeat it: FULMEN_TEST_SEED=" + std::to_string(testing::test_seed()));
  expect_none(chip, random.sample(kernels, (kernels.size() + 19) / 20));
}

INSTANTIATE_TEST_SUITE_P(Amd, PortableSpills, ::testing::ValuesIn(testing::portable_test_chips()),
                         [](const auto& info) { return info.param; });

// The second kernels of plans, which serve pointers that are no multiples of 16.
TEST_P(Spills, NoMainKernelForAnyPointerHasAny) {
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip(GetParam(), storage, chip));
  std::vector<gpu::Specialisation> kernels = gpu::shipped_kernels(chip, false);
  std::erase_if(kernels, [&](const gpu::Specialisation& s) {
    return !s.whole_rows || s.variable || !chosen(s, chip);
  });
  ASSERT_FALSE(kernels.empty());
  for (gpu::Specialisation& s : kernels) s.whole_rows = s.whole_bias = false;
  testing::Random random(1 + std::hash<std::string>{}(GetParam()));
  SCOPED_TRACE("repeat it: FULMEN_TEST_SEED=" + std::to_string(testing::test_seed()));
  expect_none(chip, random.sample(kernels, (kernels.size() + 11) / 12));
}

// A backward pass with a mask, alone or beside another feature: its addresses take registers beside
// dk's and dv's sums.
Problem masked_backward(int64_t head_dim) {
  Problem p;
  p.pass = Pass::backward;
  p.dtype = p.k_dtype = p.v_dtype = DType::bf16;
  p.batch = 1;
  p.seqlen_q = p.seqlen_k = 4096;
  p.num_heads = p.num_kv_heads = 16;
  p.head_dim = p.head_dim_v = head_dim;
  p.softmax_scale = 0.125F;
  p.q = p.k = p.v = p.out = p.dout = p.dq = p.dk =
      p.dv = {DType::bf16, true, {65536 * head_dim, 16 * head_dim, head_dim, 1}};
  p.lse = {DType::fp32, true, {16 * 4096, 4096, 1, 1}};
  p.keep_mask = {DType::boolean, true, {4096, 0, 0, 1}};
  return p;
}

TEST_P(Spills, NoBackwardKernelWithAMaskHasAny) {
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip(GetParam(), storage, chip));
  std::vector<Problem> problems{masked_backward(64), masked_backward(64), masked_backward(128),
                                masked_backward(128)};
  problems[1].bias = {DType::bf16, true, {0, 4096 * 4096, 4096, 1}};
  problems[2].alibi_slopes = {DType::fp32, true, {0, 0, 0, 1}};
  problems[3].softcap = 20;
  std::vector<gpu::Specialisation> kernels;
  for (const Problem& p : problems) {
    for (const gpu::Family* family : gpu::families()) {
      if (!chip.runs(family->target()) || family->name() != "backward" ||
          !family->serves(p, chip).yes)
        continue;
      for (const gpu::KernelLaunch& launch : family->plan(p, chip, 96).launches)
        kernels.push_back(launch.specialisation);
    }
  }
  std::erase_if(kernels,
                [](const gpu::Specialisation& s) { return s.entry != "backward/backward.h"; });
  ASSERT_GE(kernels.size(), 2 * problems.size());
  kernels.push_back(kernels[1]);  // for any pointer
  kernels.back().whole_rows = false;
  expect_none(chip, kernels);
}

// The pairs of `fulmen compile --pairs` that spilled before tile/register_pressure.h knew them.
TEST_P(Spills, NoPairUnderRegisterPressureHasAny) {
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip(GetParam(), storage, chip));
  if (chip.arch != chip.target->test_chips.front())
    GTEST_SKIP() << "another chip of the same target";
  std::vector<gpu::Specialisation> kernels = gpu::pair_kernels(chip);
  std::erase_if(kernels, [](const gpu::Specialisation& s) {
    // "prefill gfx11 bf16 d128 128x32 alibi dropout"
    const std::string name = to_string(s);
    const auto is = [&](std::string_view family, std::string_view features) {
      const std::size_t dims = name.find(" d128 ");
      return name.starts_with(family) && dims != std::string::npos &&
             name.substr(name.find(' ', dims + 6)) == features;
    };
    return !is("prefill ", " alibi dropout") && !is("prefill ", " alibi any rows") &&
           !is("decode ", " alibi splits any rows") && !is("decode ", " band splits any rows") &&
           !is("backward ", " bias=bf16 keep_mask dq");
  });
  ASSERT_GE(kernels.size(), 5U);
  expect_none(chip, kernels);
}

// Head dims, strides and pairs of features that no shipped kernel has. RDNA3 has the highest
// register pressure: both halves of a wave hold the same operands.
Problem odd_problem(int64_t head_dim, int64_t head_dim_v, int64_t seqlen_q, int64_t seqlen_k) {
  Problem p;
  p.dtype = p.k_dtype = p.v_dtype = DType::bf16;
  p.batch = 64;
  p.seqlen_q = seqlen_q;
  p.seqlen_k = seqlen_k;
  p.num_heads = p.num_kv_heads = 16;
  p.head_dim = head_dim;
  p.head_dim_v = head_dim_v;
  p.softmax_scale = 0.125F;
  const auto view = [&](int64_t length, int64_t dim) {
    const int64_t row = 16 * dim + 5;  // rows start at odd addresses
    return TensorSpec{DType::bf16, true, {length * row, row, dim, 1}};
  };
  p.q = view(seqlen_q, head_dim);
  p.k = view(seqlen_k, head_dim);
  p.v = view(seqlen_k, head_dim_v);
  p.out = view(seqlen_q, head_dim_v);
  return p;
}

TEST_P(Spills, NoKernelOfOddProblemsHasAny) {
  if (GetParam() != std::string_view("gfx1151"))
    GTEST_SKIP() << "the other chips have more registers for a row";
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip(GetParam(), storage, chip));
  const TensorSpec bias{DType::fp32, true, {0, 4096, 0, 1}},
      slopes{DType::fp32, true, {0, 0, 0, 1}};
  std::vector<Problem> problems{odd_problem(64, 35, 64, 128),  odd_problem(64, 35, 64, 64),
                                odd_problem(59, 32, 64, 64),   odd_problem(59, 32, 64, 64),
                                odd_problem(128, 67, 64, 128), odd_problem(128, 128, 1, 4096),
                                odd_problem(96, 96, 1, 4096)};
  problems[1].bias = bias;
  problems[1].alibi_slopes = slopes;
  problems[2].alibi_slopes = slopes;
  problems[2].window_left = 20;
  problems[3].bias = bias;
  problems[3].softcap = 20;
  problems[4].window_left = problems[4].window_right = 30;
  problems[5].bias = problems[6].bias = bias;
  problems[6].alibi_slopes = slopes;
  std::vector<gpu::Specialisation> kernels;
  for (const Problem& p : problems) {
    const gpu::Family* best = nullptr;
    for (const gpu::Family* family : gpu::families()) {
      if (!chip.runs(family->target()) || family->pass() != p.pass || !family->serves(p, chip).yes)
        continue;
      if (best == nullptr || gpu::rank(*family, p) > gpu::rank(*best, p)) best = family;
    }
    ASSERT_NE(best, nullptr);
    kernels.push_back(best->plan(p, chip, 96).launches.front().specialisation);
  }
  EXPECT_EQ(kernels[1].entry, "forward/short.h");
  EXPECT_EQ(kernels[5].entry, "forward/prefill.h");
  EXPECT_EQ(kernels[6].entry, "forward/decode.h");
  expect_none(chip, kernels);
}

INSTANTIATE_TEST_SUITE_P(Amd, Spills, ::testing::ValuesIn(testing::test_chips(testing::is_amd)),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fulmen::test

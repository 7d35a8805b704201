// Kernels with score functions as clang compiles them for AMD: no registers in memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fulmen/attention.h"
#include "gpu/compile/cache/cache.h"
#include "gpu/compile/report/amd_metadata.h"
#include "gpu/compile/toolchains/compiler.h"
#include "gpu/launch/family.h"
#include "support/function_case.h"
#include "support/test_chips.h"

namespace fulmen {
namespace {

using testing::FunctionExample;
using testing::kFunctionExamples;

class FunctionSpills : public testing::ChipTest {};

// What a call does: a prompt's tokens, one token by split keys, or gradients.
enum class Work { prompt, token, gradients };

Problem problem_of(const FunctionExample& example, int64_t head_dim, Work work,
                   testing::Random& random) {
  testing::CaseSpec s;
  s.dtype = DType::bf16;
  s.seqlen_q = work == Work::token ? 1 : 512;
  s.seqlen_k = work == Work::token ? 4096 : 512;
  s.num_kv_heads = 2;
  s.num_heads = work == Work::token ? 8 : 2;
  s.head_dim = s.head_dim_v = head_dim;
  s.backward = work == Work::gradients;
  testing::Case c(s, random);
  const testing::Functions functions(s, random, false);
  c.options.score_mod = example.score_mod;
  c.options.mask_mod = example.mask_mod;
  c.tensors.function_tensors = functions.list;
  return c.problem();
}

std::vector<std::string> what_spills(const Problem& p, const gpu::Chip& chip,
                                     const gpu::Compiler& compiler) {
  std::vector<std::string> spilled;
  for (const gpu::Family* family : gpu::families()) {
    if (family->pass() != p.pass || !chip.runs(family->target()) || !family->score_functions() ||
        family->target().is_portable() || !family->serves(p, chip).yes)
      continue;
    for (const gpu::KernelLaunch& launch : family->plan(p, chip, 64).launches) {
      const auto request = compile_request(launch.specialisation, chip, gpu::Platform::amd);
      if (!request.ok()) return {request.status().message()};
      const auto code = gpu::cached_compile(&compiler, {}, request.value());
      if (!code.ok()) return {code.status().message()};
      const auto kernels = gpu::read_amd_metadata(code->code);
      if (!kernels.ok()) return {kernels.status().message()};
      const gpu::AmdKernelMetadata& k = kernels->front();
      if (k.vector_spills + k.scratch_bytes == 0) continue;
      spilled.push_back(fmt::format("{} {}: {} registers spilled, {} bytes of scratch",
                                    request->arch, request->name, k.vector_spills,
                                    k.scratch_bytes));
    }
  }
  return spilled;
}

TEST_P(FunctionSpills, NoExampleHasAny) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "what clang makes of kernels is looked at in builds without sanitizers";
#endif
  const auto compiler = gpu::offline_clang_compiler();
  if (!compiler.ok()) GTEST_SKIP() << compiler.status().message();
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip(GetParam(), storage, chip));
  testing::Random random(77 + std::hash<std::string>{}(GetParam()));
  for (const FunctionExample& example : kFunctionExamples) {
    for (const int64_t head_dim : {64, 128, 256}) {
      for (const Work work : {Work::prompt, Work::token, Work::gradients}) {
        if (head_dim > 128 && work != Work::token) continue;
        // Most of the time is the compiler's.
        if (!testing::long_run() && !random.chance(0.1)) continue;
        const Problem p = problem_of(example, head_dim, work, random);
        for (const std::string& spill : what_spills(p, chip, *compiler.value()))
          ADD_FAILURE() << example.name << ", d" << head_dim << ": " << spill;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Amd, FunctionSpills,
                         ::testing::Values("gfx1100", "gfx1201", "gfx90a", "gfx942"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fulmen

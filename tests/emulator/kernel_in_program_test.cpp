// A kernel that is compiled into this program, with a configuration of its own: one can step
// through it in a debugger.
#include "kernels/core/configuration.h"
#include "kernels/forward/prefill_layout.h"

#define FULMEN_PLATFORM_EMULATED 1
#define FULMEN_PLATFORM_HEADER "platforms/emulated.h"
#define FULMEN_WAVE_SIZE 32
#define FULMEN_TARGET_GFX11 1
#define FULMEN_TARGET_HEADER "targets/gfx11/target.h"
// What gpu/launch decides for the call below.
#define FULMEN_CONFIGURATION                                                                     \
  .dtype = 1, .head_dim = 64, .head_dim_v = 64, .block_m = 128, .block_n = 32, .workgroup = 256, \
  .lds_bytes = PrefillLayout::of({16, false, 64, 64, 128, 32, 2, false, false}).total,           \
  .buffers = 2, .whole_rows = 1, .whole_dims = 1, .exact_dims = 1, .plain_scale = 1
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <vector>

#include "emulator/source/workgroup.h"
#include "gpu/launch/family.h"
#include "gpu/targets/chip.h"
#include "kernels/forward/prefill.h"
#include "runtime/float_formats.h"
#include "support/attention_case.h"

namespace fulmen::testing {
namespace {

const gpu::emulated::MemoryCheck kAnywhere = [](const void* /*address*/, std::size_t /*bytes*/) {
  return true;
};

std::string run(int workgroup_size, int64_t workgroup, void (*kernel)(const void*),
                const void* arguments) {
  fulmen_bind(&gpu::emulated::api(kernels::kWaveSize));
  const gpu::emulated::LaunchShape shape{.wave_size = kernels::kWaveSize,
                                         .workgroup_size = workgroup_size,
                                         .lds_bytes = kernels::kLdsBytes,
                                         .lds_alignment = 8};
  return run_workgroup(shape, workgroup, kernel, arguments, kAnywhere);
}

// S[16, 16] = Q[16, 64] K[16, 64]^T, the maximum of each of its rows, and which row and column each
// element is.
struct Scores {
  const kernels::Half* queries;
  const kernels::Half* keys;
  float (*scores)[16];
  float* maxima;
};
void scores_of_a_wave(const void* arguments) {
  using namespace kernels;
  const auto& a = *static_cast<const Scores*>(arguments);
  float score[kElements] = {};
  for (int d = 0; d < kHeadDim / kMmaK; ++d) {
    const RowOperand queries = load_row_operand(a.queries, kHeadDim, 0, 16, kMmaK * d, kHeadDim);
    const RowOperand keys = load_row_operand(a.keys, kHeadDim, 0, 16, kMmaK * d, kHeadDim);
    multiply_scores<Half>(score, keys, queries);
  }
  float largest = -kInfinity;
  for (int e = 0; e < kElements; ++e) {
    a.scores[tile_row(row_slot(e))][tile_column(e)] = score[e];
    largest = larger(largest, score[e]);
  }
  a.maxima[tile_row(0)] = row_max(largest);
}

TEST(KernelInProgram, ItsPiecesMultiplyScores) {
  Random random(8800);
  std::vector<kernels::Half> queries(16 * kernels::kHeadDim), keys(queries.size());
  for (auto* side : {&queries, &keys}) {
    for (kernels::Half& x : *side) x.bits = reference::to_fp16(random.normal());
  }
  float scores[16][16], maxima[16];
  const Scores arguments{queries.data(), keys.data(), scores, maxima};
  ASSERT_EQ(run(kernels::kWaveSize, 0, scores_of_a_wave, &arguments), "");
  for (int i = 0; i < 16; ++i) {
    float largest = -kernels::kInfinity;
    for (int j = 0; j < 16; ++j) {
      double sum = 0;
      for (int d = 0; d < kernels::kHeadDim; ++d) {
        const auto at = [&](const std::vector<kernels::Half>& rows, int row) {
          return double{reference::from_fp16(
              rows[static_cast<std::size_t>(row * kernels::kHeadDim + d)].bits)};
        };
        sum += at(queries, i) * at(keys, j);
      }
      EXPECT_NEAR(scores[i][j], sum, 1e-4) << i << ", " << j;
      largest = std::max(largest, scores[i][j]);
    }
    EXPECT_EQ(maxima[i], largest) << i;
  }
}

TEST(KernelInProgram, ComputesWhatTheHostPlans) {
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip("gfx1100", storage, chip));
  Random random(8801);
  CaseSpec spec;
  spec.dtype = DType::fp16;
  spec.seqlen_q = 150;
  spec.seqlen_k = 200;
  spec.head_dim = spec.head_dim_v = 64;
  Case c(spec, random);
  c.poison_outputs();
  const Problem problem = c.problem();
  for (const gpu::Family* family : gpu::families()) {
    if (family->name() != "prefill" || family->target().name != "gfx11") continue;
    const gpu::LaunchPlan plan = family->plan(problem, chip, 96);
    ASSERT_EQ(plan.launches.size(), 1U);
    const gpu::KernelLaunch& launch = plan.launches.front();
    // The struct that the kernel here was compiled with is the one that the host fills in.
    const auto fields = [](const kernels::Configuration& configuration) {
      return std::bit_cast<std::array<int, sizeof(configuration) / sizeof(int)>>(configuration);
    };
    EXPECT_EQ(fields(launch.specialisation), fields(kernels::kConfig));
    kernels::ForwardArguments arguments = plan.arguments;
    gpu::set_pointers(problem, c.tensors, arguments);
    for (int64_t n = 0; n < launch.workgroups; ++n)
      ASSERT_EQ(run(kernels::kWorkgroup, n, fulmen_kernel, &arguments), "");
    const VerifyReport report = verify_result(problem, c.tensors);
    EXPECT_TRUE(report.ok) << report.message;
    return;
  }
  FAIL() << "no prefill for gfx11";
}

}  // namespace
}  // namespace fulmen::testing

#include "gpu/shipped.h"

#include <algorithm>
#include <array>

#include "gpu/choice.h"
#include "gpu/launch/append_kv.h"
#include "gpu/launch/unused_rows.h"
#include "gpu/usual_problems.h"

namespace fulmen::gpu {
namespace {

constexpr int kUsualComputeUnits = 96;
// Multiprocessors of an H100 and an H200: tiles, splits and the tile scheduler depend on the
// number.
constexpr int kHopperUnits = 132;

std::vector<Problem> main_problems() {
  std::vector<Problem> list;
  for (const int64_t dim : {64, 128, 256}) {
    for (const bool causal : {false, true})
      list.push_back(usual_problem(DType::bf16, {1, 4096, 4096, 16, 16, dim}, causal));
  }
  list.push_back(usual_problem(DType::fp16, {1, 4096, 4096, 16, 16, 128}, false));
  // Hopper's tiles of 64 dims go by the number of keys.
  for (const bool causal : {false, true})
    list.push_back(usual_problem(DType::bf16, {1, 2048, 2048, 16, 16, 64}, causal));
  // Chess boards, with a bias a head.
  for (const auto& [heads, dim] :
       {std::pair<int64_t, int64_t>{24, 32}, {12, 64}, {8, 96}, {6, 128}}) {
    Problem board = usual_problem(DType::fp16, {64, 64, 64, heads, heads, dim}, false);
    add_bias(board, DType::fp16);
    list.push_back(board);
  }
  for (const int64_t dim : {64, 128, 256})
    list.push_back(usual_problem(DType::bf16, {1, 1, 65536, 32, 8, dim}, false));
  for (const int64_t dim : {64, 128, 256})
    list.push_back(usual_problem(DType::fp32, {1, 4096, 4096, 16, 16, dim}, false));
  list.push_back(usual_problem(DType::fp32, {1, 4096, 4096, 16, 16, 64}, true));
  // Few queries of fp32: rows that share a KV head, and whether keys are split, are compiled in.
  for (const int64_t dim : {64, 128}) {
    for (const int64_t kv_heads : {4, 8, 16, 32}) {
      for (const int64_t batch : {1, 256})
        list.push_back(usual_problem(DType::fp32, {batch, 1, 65536, 32, kv_heads, dim}, false));
    }
  }
  for (const int64_t page_size : {16, 256}) {
    list.push_back(paged(usual_problem(DType::fp32, {8, 1, 65536, 32, 8, 128}, false), page_size));
  }
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const int64_t dim : {64, 128})
      list.push_back(packed(usual_problem(dtype, {8, 4096, 4096, 16, 4, dim}, true)));
  }
  list.push_back(paged(usual_problem(DType::bf16, {8, 4096, 4096, 16, 4, 128}, true), 64));
  for (const int64_t page_size : {16, 256}) {
    list.push_back(paged(usual_problem(DType::bf16, {8, 1, 65536, 32, 8, 128}, false), page_size));
  }
  for (const int64_t dim : {64, 128, 256}) {
    for (const bool causal : {false, true}) {
      list.push_back(backward_of(usual_problem(DType::bf16, {1, 4096, 4096, 16, 16, dim}, causal)));
    }
  }
  // A VAE's block, and heads of Gemma 4.
  list.push_back(backward_of(usual_problem(DType::bf16, {1, 4096, 4096, 1, 1, 512}, false)));
  list.push_back(backward_of(usual_problem(DType::bf16, {1, 4096, 4096, 8, 4, 512}, true)));
  list.push_back(backward_of(usual_problem(DType::fp16, {1, 4096, 4096, 16, 16, 128}, false)));
  // The second panel in part.
  list.push_back(backward_of(usual_problem(DType::bf16, {2, 4096, 4096, 16, 16, 80}, false)));
  for (const int64_t dim : {64, 128}) {
    list.push_back(
        backward_of(packed(usual_problem(DType::bf16, {8, 4096, 4096, 16, 4, dim}, true))));
  }
  for (const int64_t dim : {32, 64, 96, 128}) {
    const int64_t heads = 768 / dim;
    Problem board = usual_problem(DType::fp16, {64, 64, 64, heads, heads, dim}, false);
    add_bias(board, DType::fp16);
    board = backward_of(board);
    board.dbias = board.bias;
    list.push_back(board);
  }
  for (const int64_t dim : {64, 128})
    list.push_back(backward_of(usual_problem(DType::fp32, {1, 4096, 4096, 16, 16, dim}, false)));
  // Triangle attention: a bias that all rows of pairs share, with and without padding.
  for (const bool masked : {false, true}) {
    Problem triangle = usual_problem(DType::bf16, {512, 512, 512, 4, 4, 32}, false);
    add_bias(triangle, DType::fp32);
    if (masked) triangle.keep_mask = {DType::boolean, true, {triangle.seqlen_k, 0, 0, 1}};
    triangle = backward_of(triangle);
    triangle.dbias = triangle.bias;
    list.push_back(triangle);
  }
  // Products in 8 bits.
  for (const Precision precision : {Precision::int8, Precision::fp8}) {
    for (const int64_t dim : {64, 128, 256}) {
      for (const bool causal : {false, true}) {
        list.push_back(usual_problem(DType::bf16, {1, 4096, 4096, 16, 16, dim}, causal));
        list.back().precision = precision;
      }
    }
  }
  // Training with dropout.
  Problem training = usual_problem(DType::bf16, {16, 512, 512, 12, 12, 64}, false);
  training.dropout = 6554;  // 0.1
  list.push_back(training);
  list.push_back(backward_of(training));
  return list;
}

// What a problem may have beside q, k and v, one at a time.
using Feature = void (*)(Problem&);
constexpr std::array<Feature, 10> kFeatures{
    [](Problem& p) { p.window_right = 0; },
    [](Problem& p) { p.window_left = p.window_right = 1024; },
    [](Problem& p) { add_bias(p, p.dtype); },
    [](Problem& p) { p.keep_mask = {DType::boolean, true, {p.seqlen_k, 0, 0, 1}}; },
    [](Problem& p) { p.alibi_slopes = {DType::fp32, true, {0, 0, 0, 1}}; },
    [](Problem& p) { p.softcap = 20; },
    [](Problem& p) { p.sinks = {DType::fp32, true, {0, 0, 0, 1}}; },
    [](Problem& p) { p.dropout = 6554; },
    [](Problem& p) { p = packed(p); },
    [](Problem& p) {
      for (TensorSpec* spec : {&p.q, &p.k, &p.v, &p.out}) spec->strides[1] += 1;  // rows anywhere
    }};

// Every feature, and every two of them, of the kinds of problems that people have.
std::vector<Problem> pair_problems() {
  std::vector<Problem> list;
  for (const int64_t dim : {64, 128}) {
    for (const UsualShape& shape :
         {UsualShape{1, 4096, 4096, 16, 4, dim}, UsualShape{64, 64, 64, 12, 12, dim},
          UsualShape{1, 1, 65536, 32, 8, dim}}) {
      for (std::size_t one = 0; one < kFeatures.size(); ++one) {
        for (std::size_t other = one; other < kFeatures.size(); ++other) {
          Problem p = usual_problem(DType::bf16, shape, false);
          kFeatures[one](p);
          if (other != one) kFeatures[other](p);
          list.push_back(p);
          if (shape.seqlen_q == 1) continue;
          list.push_back(backward_of(p));
          if (p.bias.present && !p.variable_lengths()) list.back().dbias = p.bias;
        }
      }
    }
  }
  return list;
}

std::vector<Problem> all_problems() {
  std::vector<Problem> list = main_problems();
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const int64_t dim : {64, 80, 128, 256}) {
      for (const UsualShape& shape :
           {UsualShape{1, 4096, 4096, 16, 4, dim}, UsualShape{64, 64, 64, 12, 12, dim},
            UsualShape{1, 1, 65536, 32, 8, dim}}) {
        const bool few = shape.seqlen_q == 1;
        for (const bool causal : {false, true})
          list.push_back(usual_problem(dtype, shape, causal && !few));
        Problem p = usual_problem(dtype, shape, false);
        add_bias(p, dtype);
        list.push_back(p);
        p.bias = {};
        p.keep_mask = {DType::boolean, true, {shape.seqlen_k, 0, 0, 1}};
        list.push_back(p);
        if (dtype == DType::bf16 && dim != 64) {
          p = usual_problem(dtype, shape, !few);
          if (!few) list.push_back(packed(p));
          for (const int64_t page_size : {16, 64}) list.push_back(paged(p, page_size));
        }
        // Everything at once, the rows anywhere.
        p = usual_problem(dtype, shape, true);
        add_bias(p, DType::fp32);
        p.keep_mask = {DType::boolean, true, {shape.seqlen_k, 0, 0, 1}};
        p.alibi_slopes = {DType::fp32, true, {0, 0, 0, 1}};
        p.sinks = p.alibi_slopes;
        p.softcap = 20;
        p.window_left = 1024;
        p.q.strides[1] += 1;
        list.push_back(p);
      }
    }
  }
  for (const bool causal : {false, true})
    list.push_back(usual_problem(DType::bf16, {1, 4096, 4096, 16, 16, 512}, causal));
  list.push_back(latent(8, 65536));
  return list;
}

// And those that no plan of attention launches: append_kv(), unused rows.
std::vector<Specialisation> with_standalone_kernels(std::vector<Specialisation> list) {
  for (const DType dtype : {DType::bf16, DType::fp16}) list.push_back(append_kernel(dtype));
  list.push_back(unused_rows_kernel());
  return list;
}

}  // namespace

std::vector<Specialisation> kernels_of(const std::vector<Problem>& problems, const Chip& chip) {
  std::vector<Specialisation> list;
  std::vector<std::string> seen;
  for (const Problem& problem : problems) {
    const Family* best = nullptr;
    for (const Family* family : families()) {
      if (!chip.runs(family->target())) continue;
      if (problem.deterministic && !family->deterministic()) continue;
      if (family->pass() != problem.pass || !family->serves(problem, chip).yes) continue;
      if (problem.variable_lengths() && !family->variable_lengths()) continue;
      if (problem.dropout > 0 && !family->dropout()) continue;
      if (best == nullptr || rank(*family, problem) > rank(*best, problem)) best = family;
    }
    if (best == nullptr) continue;
    for (const int units : {kUsualComputeUnits, kHopperUnits}) {
      if (units == kHopperUnits && chip.arch != "sm_90a") continue;
      for (const KernelLaunch& launch : best->plan(problem, chip, units).launches) {
        const std::string key =
            std::string(launch.specialisation.entry) + prelude(launch.specialisation);
        if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
        seen.push_back(key);
        list.push_back(launch.specialisation);
      }
    }
  }
  return list;
}

std::vector<Specialisation> shipped_kernels(const Chip& chip, bool all) {
  std::vector<Problem> problems = all ? all_problems() : main_problems();
  for (std::size_t n = 0, count = problems.size(); n < count; ++n) {
    if (problems[n].pass != Pass::backward) continue;
    problems.push_back(problems[n]);
    problems.back().deterministic = false;
  }
  return with_standalone_kernels(kernels_of(problems, chip));
}

std::vector<Specialisation> pair_kernels(const Chip& chip) {
  return kernels_of(pair_problems(), chip);
}

std::vector<Specialisation> common_kernels(const Chip& chip) {
  return with_standalone_kernels(kernels_of(common_calls(), chip));
}

}  // namespace fulmen::gpu

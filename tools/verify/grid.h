// The problems that `fulmen verify` puts every kernel through.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "tools/tensors/memory.h"
#include "tools/tensors/random_inputs.h"

namespace fulmen::tools {

enum class Feature : int {
  none,
  causal,
  top_left,
  window,
  bias,
  row_bias,
  keep,
  alibi,
  sinks,
  softcap,
  all_at_once
};
inline constexpr int kFeatures = 11;
enum class Layout : int { bshd, bhsd, packed_qkv, odd_strides };
inline constexpr int kLayouts = 4;

// Sequences as long as the shapes; or of different lengths, packed, padded, or with paged keys and
// values.
enum class Sequences : int { even, packed, padded, paged };

struct GridCase {
  DType dtype = DType::fp32;
  int64_t batch = 1;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
  Feature feature = Feature::none;
  Layout layout = Layout::bshd;
  bool lse = true;
  bool large = false;  // q x 5, k and v x 3
  // The window, for features with one.
  int64_t window_left = 40, window_right = 17;
  float q_size = 1;  // a further factor of q
  bool equal_keys = false;
  bool shared_bias = false;  // Feature::bias: that of a head is the same for all batches
  bool huge_bias = false;    // Feature::bias has rows at the ends of its dtype's range
  Pass pass = Pass::forward;
  Sequences sequences = Sequences::even;
  int64_t page_size = 0;
  // Forward: formats of k and v, with a scale of each head or token where they have none.
  std::optional<DType> k_format{}, v_format{};
  bool token_scales = false;
  float dropout = 0;
  Precision precision = Precision::exact;
  // Backward alone: a gradient of the bias that is summed over dims of the bias.
  bool dlse = false;
  bool dbias = true;     // where there is a bias
  int dbias_summed = 0;  // 1: over batches, 2: over heads, 3: over queries, 4: all of them
};
std::string to_string(const GridCase& grid_case);

// quick: a minute on two cores; full: every head_dim of docs/contract.md with every pair of lengths
// and every feature. emulated: few and short problems that meet every feature, since each
// combination of head_dim and feature is a kernel to be compiled.
enum class GridSize { emulated, quick, full };
std::vector<GridCase> verify_grid(GridSize size, DType dtype, Pass pass = Pass::forward);

// A small problem of any features, the same for the same generator: one row, dims of 1 and 3,
// thousands of equal keys, scores that are large and cancel, few rows over keys enough to be split,
// in windows that begin anywhere, and dropout near 1 among them. few_kernels: head_dims and
// features of which emulated chips need few kernels.
GridCase random_case(std::mt19937_64& generator, DType dtype, Pass pass, bool few_kernels);

struct GridData {
  std::vector<Memory> memory;
  AttentionTensors tensors;
  AttentionOptions options;
};
// Inputs and room for outputs; out and lse of a backward case are the reference's. Throws
// std::runtime_error when that fails. threads: as AttentionOptions::num_threads, for the reference.
GridData make_grid_data(const GridCase& grid_case, NormalPool& pool, int threads = 0);
// The problem of the case's pass.
Result<Problem> problem_of(const GridCase& grid_case, const GridData& data);

}  // namespace fulmen::tools

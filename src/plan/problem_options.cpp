#include "plan/problem_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/tensor_checks.h"
#include "runtime/threading.h"
#include "score/softcap.h"

namespace fulmen {
namespace {

constexpr float kDropoutSteps = 65536;  // Problem::dropout counts in units of 1 / 65536
// Kernels fold log2(e) into the scale, and divide it by the softcap, in fp32: within this bound
// neither overflows.
constexpr float kMostScale = 1e18F;
using score::kLeastSoftcap;
using score::kMostSoftcap;

Status check_scale(float scale, Problem& p) {
  if (!(std::abs(scale) <= kMostScale)) {
    return invalid(fmt::format("softmax_scale is {}: a finite number from {:g} to {:g} is needed",
                               scale, -kMostScale, kMostScale));
  }
  p.softmax_scale = scale;
  return {};
}

Status check_softcap(float softcap, Problem& p) {
  if (!(softcap == 0 || (softcap >= kLeastSoftcap && softcap <= kMostSoftcap))) {
    return invalid(fmt::format(
        "softcap is {}: a finite number, 0 (off) or above, is needed: 0, or {:g} to {:g}", softcap,
        kLeastSoftcap, kMostSoftcap));
  }
  p.softcap = softcap;
  return {};
}

// Wider than any sequence is unlimited; clipping keeps sums of indices exact.
Status check_window(const char* name, int64_t window, int64_t& clipped) {
  if (window < -1)
    return invalid(fmt::format("{} is {}: -1 (unlimited) or above is accepted", name, window));
  clipped = window > kMaxLength ? -1 : window;
  return {};
}

}  // namespace

const char* to_string(Precision precision) noexcept {
  return precision == Precision::int8 ? "int8" : precision == Precision::fp8 ? "fp8" : "exact";
}

Status check_options(const AttentionOptions& o, Problem& p) {
  Status status =
      check_scale(o.softmax_scale.value_or(1.0F / std::sqrt(static_cast<float>(p.head_dim))), p);
  if (status.ok()) status = check_softcap(o.softcap, p);
  if (!status.ok()) return status;
  if (o.causal != Causal::none && o.causal != Causal::bottom_right &&
      o.causal != Causal::top_left) {
    return invalid(
        fmt::format("causal is {}: none (0), bottom_right (1) and top_left (2) are accepted",
                    static_cast<int>(o.causal)));
  }
  status = check_window("window_left", o.window_left, p.window_left);
  if (status.ok()) status = check_window("window_right", o.window_right, p.window_right);
  if (!status.ok()) return status;
  if (!(o.dropout >= 0 && o.dropout < 1)) {
    return invalid(fmt::format(
        "dropout is {}: a probability, 0 (off) or above and below 1, is needed", o.dropout));
  }
  p.dropout = std::min(static_cast<int>(std::lround(o.dropout * kDropoutSteps)),
                       static_cast<int>(kDropoutSteps) - 1);
  p.deterministic = o.deterministic;
  if (o.precision != Precision::exact && o.precision != Precision::int8 &&
      o.precision != Precision::fp8) {
    return invalid(fmt::format("precision is {}: exact (0), int8 (1) and fp8 (2) are accepted",
                               static_cast<int>(o.precision)));
  }
  if (o.precision != Precision::exact && p.pass == Pass::backward) {
    return {StatusCode::unsupported, fmt::format("precision is {}: gradients are of exact products",
                                                 to_string(o.precision))};
  }
  p.precision = o.precision;
  status = cpu::check_num_threads(o.num_threads);
  if (!status.ok()) return status;
  if (o.causal != Causal::none) p.window_right = 0;
  p.top_left = o.causal == Causal::top_left;
  p.diagonal = p.variable_lengths() || p.top_left ? 0 : p.seqlen_k - p.seqlen_q;
  return {};
}

Status apply(const RunOptions& options, Problem& problem) {
  Problem changed = problem;
  Status status;
  if (options.softmax_scale) status = check_scale(*options.softmax_scale, changed);
  if (status.ok() && options.softcap) status = check_softcap(*options.softcap, changed);
  if (status.ok() && options.window_left)
    status = check_window("window_left", *options.window_left, changed.window_left);
  if (status.ok() && options.window_right)
    status = check_window("window_right", *options.window_right, changed.window_right);
  if (status.ok()) problem = changed;
  return status;
}

AttentionOptions options_of(const Problem& p) {
  AttentionOptions options;
  options.softmax_scale = p.softmax_scale;
  options.softcap = p.softcap;
  // bottom_right is a window_right of 0.
  options.causal = p.top_left ? Causal::top_left : Causal::none;
  options.window_left = p.window_left;
  options.window_right = p.window_right;
  options.dropout = static_cast<float>(p.dropout) / kDropoutSteps;
  options.deterministic = p.deterministic;
  options.precision = p.precision;
  options.score_mod = p.functions.score_mod();
  options.mask_mod = p.functions.mask_mod();
  if (p.has_block_mask()) {
    options.mask_block_q = p.mask_block_q;
    options.mask_block_k = p.mask_block_k;
  }
  if (p.packed_q()) options.max_seqlen_q = p.seqlen_q;
  if (p.packed_k()) options.max_seqlen_k = p.seqlen_k;
  return options;
}

}  // namespace fulmen

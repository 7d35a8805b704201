// Attention by plain loops with one seeded fault, for the question whether the tolerance rule catches it.
#pragma once

#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen::testing {

enum class Fault : int {
  none,
  mask_edge_one_key_more,
  mask_edge_one_key_less,
  window_left_one_key_less,
  diagonal_top_left,
  keep_mask_left_out,
  keep_mask_of_the_row_before,
  first_key_lost,
  last_key_lost,
  key_counted_twice,
  scale_off_by_1_percent,
  one_lanes_sum_missing,
  stale_maximum,
  output_not_rescaled,
  sum_not_rescaled,
  wrong_kv_head,
  bias_of_the_row_before,
  bias_of_the_first_head,
  bias_left_out,
  last_dim_of_the_product_dropped,
  softcap_left_out,
  sink_left_out,
  sink_counted_twice,
  alibi_left_out,
  value_of_the_key_before,
  last_value_dim_dropped,
  query_of_the_row_before,
  first_batch_for_all,
  lse_in_base_2,
  lse_without_maximum,
  forward_faults,  // backward ones follow
  dq_without_scale,
  dk_without_scale,
  dk_of_one_query_head_missing,
  dv_of_one_query_head_missing,
  dk_of_the_last_query_missing,
  dv_of_the_last_query_missing,
  dq_of_the_last_key_missing,
  delta_of_the_row_before,
  delta_left_out,
  dlse_left_out,
  lse_of_the_row_before,
  softcaps_slope_left_out,
  dropouts_scale_left_out,
  dropout_of_the_row_before,
  dropout_not_in_dv,
  dbias_of_the_last_query_missing,
  dsink_of_the_wrong_sign,
  end
};
const char* name_of(Fault fault);

// Computes the outputs of the problem's pass in double, probabilities and the scores' gradients rounded to the dtype once, as
// kernels do. Sequences as long as the shapes only.
void faulty_attention(const Problem& problem, const AttentionTensors& tensors, Fault fault);

}  // namespace fulmen::testing

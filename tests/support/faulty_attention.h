// Attention by plain loops with one seeded fault, for the question whether the tolerance rule
// catches it.
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
  key_behind_a_mask_counted,
  masked_key_of_score_zero,
  window_left_one_key_more,
  keep_mask_inverted,
  keep_mask_of_the_first_head,
  keep_mask_of_the_first_batch,
  keep_mask_of_a_tiles_first_key,
  keep_mask_of_the_key_before,
  query_of_the_wrong_sign,
  key_of_the_wrong_sign,
  value_of_the_wrong_sign,
  query_of_the_head_before,
  rows_of_the_block_before,
  last_row_left_zero,
  bias_scaled,
  bias_in_base_2,
  bias_before_the_softcap,
  bias_of_the_first_batch,
  bias_of_the_key_before,
  alibi_signed,
  alibi_of_the_head_before,
  alibi_from_the_row_alone,
  sink_of_the_first_head,
  lse_without_the_sink,
  lse_of_the_row_before_stored,
  second_half_of_the_keys_lost,
  huge_bias_in_base_2,   // which is beyond fp32
  huge_maximum_rounded,  // in base 2, before it is subtracted
  forward_faults,        // backward ones follow
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
  dk_of_the_first_query_missing,
  dq_of_the_first_key_missing,
  dq_of_a_split_missing,
  dk_of_the_wrong_sign,
  dk_of_the_key_before,
  dq_without_the_slope,
  dbias_with_the_scale,
  dbias_of_the_first_head,
  dbias_of_the_first_batch,
  dbias_with_the_softcaps_slope,
  dsink_without_the_probability,
  delta_of_the_head_before,
  dlse_of_the_wrong_sign,
  dlse_of_the_row_before,
  dropout_left_out_of_ds,
  huge_lse_without_the_sum,  // its logarithm is below what fp32 keeps of the maximum
  end
};
const char* name_of(Fault fault);

// Computes the outputs of the problem's pass in double, probabilities and the scores' gradients
// rounded to the dtype once, as kernels do. Sequences as long as the shapes only.
void faulty_attention(const Problem& problem, const AttentionTensors& tensors, Fault fault);

}  // namespace fulmen::testing

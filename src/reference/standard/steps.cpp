#include "reference/standard/steps.h"

#include <algorithm>
#include <limits>

#include "reference/oracle/decode_rows.h"
#include "reference/oracle/huge_scores.h"
#include "reference/oracle/oracle_rows.h"
#include "reference/oracle/score_row.h"
#include "reference/row_loops.h"
#include "reference/standard/eight_bits.h"

namespace fulmen::reference {
namespace {

int64_t rows_at_once(const Problem& p) noexcept { return std::min(kRowsPerTask, p.seqlen_q); }

template <class Round>
float softmax_rounded(const Problem& p, const AttentionTensors& t, int64_t b, int64_t h, int64_t i,
                      DType storage, float* scores, RowFunctions<float>* functions,
                      const Round& round) noexcept {
  AttendedKeys keys(p, t, b, h, i);
  if (functions != nullptr) functions->restrict_keys(b, h, i, keys);
  for (int64_t j = keys.begin; j < keys.end; ++j) scores[j] = stored_score(storage, scores[j]);
  add_score_terms(p, t, b, h, i, keys, scores,
                  [storage](float x) { return stored_score(storage, x); });
  if (functions != nullptr) {
    functions->apply(b, h, i, keys, scores);
    for (int64_t j = keys.begin; j < keys.end; ++j) scores[j] = stored_score(storage, scores[j]);
  }
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  std::fill(scores, scores + keys.begin, kMasked);
  std::fill(scores + keys.end, scores + p.seqlen_k, kMasked);
  if (keys.keep != nullptr) {
    for (int64_t j = keys.begin; j < keys.end; ++j)
      scores[j] = keys.keep[j * keys.keep_stride] != 0 ? scores[j] : kMasked;
  }
  const float lse = softmax_row(scores, p.seqlen_k, sink_of(p, t, h));
  const RowDropout dropout(p, t, b, h, i);
  for (int64_t j = keys.begin; j < keys.end; ++j)
    scores[j] = round(round(scores[j]) * dropout.factor(j));
  return lse;
}

}  // namespace

float softmax_step(const Problem& p, const AttentionTensors& t, int64_t b, int64_t h, int64_t i,
                   DType storage, float* scores, RowFunctions<float>* functions) noexcept {
  switch (storage) {
    case DType::fp16:
      return softmax_rounded(p, t, b, h, i, storage, scores, functions,
                             [](float x) { return from_fp16(to_fp16(x)); });
    case DType::bf16:
      return softmax_rounded(p, t, b, h, i, storage, scores, functions,
                             [](float x) { return from_bf16(to_bf16(x)); });
    default:
      return softmax_rounded(p, t, b, h, i, storage, scores, functions, [](float x) { return x; });
  }
}

int64_t StandardRows::scratch_floats(const Problem& p) noexcept {
  return p.seqlen_k * (p.head_dim + p.head_dim_v) +
         rows_at_once(p) * (p.seqlen_k + p.head_dim_v + 1) + 2 * p.head_dim;
}

StandardRows::StandardRows(const Problem& problem, const AttentionTensors& tensors, float* scratch)
    : all_(problem),
      all_tensors_(tensors),
      view_(sequence_view(problem, tensors)),
      functions_(problem, tensors),
      k_(scratch),
      v_(k_ + problem.head_dim * problem.seqlen_k),
      scores_(v_ + problem.seqlen_k * problem.head_dim_v),
      out_(scores_ + rows_at_once(problem) * problem.seqlen_k),
      lse_(out_ + rows_at_once(problem) * problem.head_dim_v),
      q_(lse_ + rows_at_once(problem)),
      k_mean_(q_ + problem.head_dim) {}

void StandardRows::load(int64_t batch, int64_t kv_head) noexcept {
  if (batch == batch_ && kv_head == kv_head_) return;
  batch_ = batch;
  kv_head_ = kv_head;
  select_sequence(all_, all_tensors_, batch, view_);
  const Problem& p = view_.problem;
  decode_transposed(KvSource(view_, KvSource::Of::k, batch, kv_head), p.seqlen_k, k_);
  decode_rows(KvSource(view_, KvSource::Of::v, batch, kv_head), p.seqlen_k, v_);
  if (p.precision == Precision::int8) {
    subtract_mean(k_, p.head_dim, p.seqlen_k, k_mean_);
    round_with_one_scale(DType::int8, k_, p.head_dim * p.seqlen_k);
  } else if (p.precision == Precision::fp8) {
    round_with_one_scale(DType::fp8_e4m3, k_, p.head_dim * p.seqlen_k);
    round_with_one_scale(DType::fp8_e4m3, v_, p.head_dim_v * p.seqlen_k);
  }
}

const float* StandardRows::rows(int64_t h, int64_t first, int64_t count) noexcept {
  const Problem& p = view_.problem;
  const AttentionTensors& t = view_.tensors;
  for (int64_t r = 0; r < count; ++r) {  // step one: scores = scale * q k^T
    float* scores = scores_ + r * p.seqlen_k;
    decode_row(t.q.data, p.dtype, offset_of(p.q, batch_, first + r, h), p.head_dim, q_);
    float start = 0;
    if (p.precision == Precision::int8) {
      for (int64_t d = 0; d < p.head_dim; ++d) start += q_[d] * k_mean_[d];
      round_with_one_scale(DType::int8, q_, p.head_dim);
    } else if (p.precision == Precision::fp8) {
      round_with_one_scale(DType::fp8_e4m3, q_, p.head_dim);
    }
    std::fill(scores, scores + p.seqlen_k, start);
    for (int64_t d = 0; d < p.head_dim; ++d)
      add_scaled(scores, k_ + d * p.seqlen_k, q_[d], p.seqlen_k);
    for (int64_t j = 0; j < p.seqlen_k; ++j) scores[j] *= p.softmax_scale;
  }
  for (int64_t r = 0; r < count; ++r) {
    lse_[r] =
        softmax_step(p, t, batch_, h, first + r, p.dtype, scores_ + r * p.seqlen_k, &functions_);
    if (p.precision == Precision::fp8) round_probabilities(scores_ + r * p.seqlen_k, p.seqlen_k);
  }
  // Step three: out = probabilities v, without the masked keys: 0 * NaN would leak.
  for (int64_t r = 0; r < count; ++r) {
    float* out = out_ + r * p.head_dim_v;
    std::fill(out, out + p.head_dim_v, start_of_row(p, t, h));
    AttendedKeys keys(p, t, batch_, h, first + r);
    functions_.restrict_keys(batch_, h, first + r, keys);
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      if (keys.contains(j))
        add_scaled(out, v_ + j * p.head_dim_v, scores_[r * p.seqlen_k + j], p.head_dim_v);
    }
    for (int64_t d = 0; d < p.head_dim_v; ++d) out[d] = round_to(p.dtype, out[d]);
  }
  return out_;
}

void store_rows(const Problem& p, const AttentionTensors& t, int64_t b, int64_t h, int64_t first,
                int64_t count, const float* out, const float* lse) noexcept {
  for (int64_t r = 0; r < count; ++r) {
    const int64_t row = offset_of(p.out, b, first + r, h);
    for (int64_t d = 0; d < p.head_dim_v; ++d) {
      store_float(t.out.data, p.dtype, row + d, out[r * p.head_dim_v + d]);
    }
    if (p.lse.present) static_cast<float*>(t.lse.data)[offset_of(p.lse, b, h, first + r)] = lse[r];
  }
}

}  // namespace fulmen::reference

#include "runtime/sequence_view.h"

#include "fulmen/tensor_member.h"

namespace fulmen {
namespace {

using T = AttentionTensors;
using P = Problem;

const int* numbers(const TensorSpec& spec, const Tensor& tensor) noexcept {
  return spec.present ? static_cast<const int*>(tensor.data) : nullptr;
}

// The tensor begins at a row of the dim, which has but one batch.
void begin_at(const P& p, const T& t, TensorSpec P::* spec, TensorMember<T> tensor, int dim,
              int64_t row, SequenceView& view) noexcept {
  const TensorSpec& from = p.*spec;
  if (!from.present || (t->*tensor).data == nullptr) return;
  const int64_t bytes = row * from.strides[static_cast<std::size_t>(dim)] * size_of(from.dtype);
  (view.tensors->*tensor).data = static_cast<char*>((t->*tensor).data) + bytes;
}

}  // namespace

algorithm::SequenceTable sequence_table(const Problem& p, const AttentionTensors& t) noexcept {
  return {numbers(p.cu_seqlens_q, t.cu_seqlens_q),
          numbers(p.cu_seqlens_k, t.cu_seqlens_k),
          numbers(p.seqlens_k, t.seqlens_k),
          numbers(p.leftpad_k, t.leftpad_k),
          numbers(p.block_table, t.block_table),
          p.block_table.strides[2],
          p.page_size,
          p.seqlen_q,
          p.paged() ? p.max_pages * p.page_size : p.padded_k};
}

SequenceView sequence_view(const Problem& problem, const AttentionTensors& tensors) noexcept {
  return {problem, tensors};
}

void select_sequence(const Problem& p, const AttentionTensors& t, int64_t b,
                     SequenceView& view) noexcept {
  if (!p.variable_lengths()) return;
  const algorithm::Sequence s = sequence_table(p, t).sequence(b);
  view.problem.seqlen_q = s.q_len;
  view.problem.seqlen_k = s.k_len;
  view.problem.diagonal = p.top_left ? 0 : s.k_len - s.q_len;
  if (p.packed_q()) {
    view.q_row = s.q_row;
    begin_at(p, t, &P::q, &T::q, 1, s.q_row, view);
    begin_at(p, t, &P::out, &T::out, 1, s.q_row, view);
    begin_at(p, t, &P::dout, &T::dout, 1, s.q_row, view);
    begin_at(p, t, &P::dq, &T::dq, 1, s.q_row, view);
    begin_at(p, t, &P::lse, &T::lse, 2, s.q_row, view);
    begin_at(p, t, &P::dlse, &T::dlse, 2, s.q_row, view);
  }
  if (p.paged()) {
    view.first_row = s.k_row;
    return;
  }
  if (p.packed_k()) view.k_row = s.k_row;
  if (s.k_len == 0) return;  // its row may be past the end
  begin_at(p, t, &P::k, &T::k, 1, s.k_row, view);
  begin_at(p, t, &P::v, &T::v, 1, s.k_row, view);
  begin_at(p, t, &P::k_scale, &T::k_scale, 1, s.k_row, view);
  begin_at(p, t, &P::v_scale, &T::v_scale, 1, s.k_row, view);
  begin_at(p, t, &P::dk, &T::dk, 1, s.k_row, view);
  begin_at(p, t, &P::dv, &T::dv, 1, s.k_row, view);
}

}  // namespace fulmen

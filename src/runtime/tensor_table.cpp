#include "runtime/tensor_table.h"

namespace fulmen {

using T = AttentionTensors;
using P = Problem;
constexpr std::array<TensorField, kTensorFields> kTensorTable{{
    {"q", &T::q, &P::q, {true, true}, {}},
    {"k", &T::k, &P::k, {true, true}, {}},
    {"v", &T::v, &P::v, {true, true}, {}},
    {"bias", &T::bias, &P::bias, {true, true}, {}},
    {"keep_mask", &T::keep_mask, &P::keep_mask, {true, true}, {}},
    {"alibi_slopes", &T::alibi_slopes, &P::alibi_slopes, {true, true}, {}},
    {"sinks", &T::sinks, &P::sinks, {true, true}, {}},
    {"cu_seqlens_q", &T::cu_seqlens_q, &P::cu_seqlens_q, {true, true}, {}},
    {"cu_seqlens_k", &T::cu_seqlens_k, &P::cu_seqlens_k, {true, true}, {}},
    {"seqlens_k", &T::seqlens_k, &P::seqlens_k, {true, true}, {}},
    {"block_table", &T::block_table, &P::block_table, {true, true}, {}},
    {"leftpad_k", &T::leftpad_k, &P::leftpad_k, {true, true}, {}},
    {"out", &T::out, &P::out, {false, true}, {true, false}},
    {"lse", &T::lse, &P::lse, {false, true}, {true, false}},
    {"dout", &T::dout, &P::dout, {false, true}, {}},
    {"dlse", &T::dlse, &P::dlse, {false, true}, {}},
    {"dq", &T::dq, &P::dq, {}, {false, true}},
    {"dk", &T::dk, &P::dk, {}, {false, true}},
    {"dv", &T::dv, &P::dv, {}, {false, true}},
    {"dbias", &T::dbias, &P::dbias, {}, {false, true}},
    {"dsinks", &T::dsinks, &P::dsinks, {}, {false, true}},
}};

std::size_t bytes_of(const TensorSpec& spec, const Problem::Shape& shape) noexcept {
  if (!spec.present) return 0;
  int64_t last = 0;
  for (int d = 0; d < 4; ++d) {
    if (shape[d] == 0) return 0;
    last += (shape[d] - 1) * spec.strides[d];
  }
  return static_cast<std::size_t>((last + 1) * size_of(spec.dtype));
}

bool may_broadcast(const TensorField& field) noexcept {
  return field.spec == &P::bias || field.spec == &P::keep_mask || field.spec == &P::alibi_slopes || field.spec == &P::dbias;
}

Problem::Shape without_broadcast(const TensorSpec& spec, Problem::Shape shape) noexcept {
  for (int d = 0; d < 4; ++d) {
    if (spec.strides[d] == 0 && shape[d] > 1) shape[d] = 1;
  }
  return shape;
}

using Shape = Problem::Shape;

std::array<Shape, kTensorFields> shapes_of(const Problem& p) {
  const Shape q = p.q_shape(), out = p.out_shape(), k = p.k_shape(), v = p.v_shape(), scores = p.score_shape(),
              rows = p.lse_shape();
  const Shape slopes{p.batch, 1, 1, p.num_heads}, heads{1, 1, 1, p.num_heads};
  const Shape each{1, 1, 1, p.batch}, bounds{1, 1, 1, p.batch + 1}, pages{1, 1, p.batch, p.max_pages};
  return {q,     k,    v,   scores, scores, slopes, heads, bounds, bounds, each,
          pages, each, out, rows,   out,    rows,   q,     k,      v,      without_broadcast(p.dbias, scores),
          heads};
}

std::vector<UsedTensor> used_tensors(const Problem& p, const std::array<Shape, kTensorFields>& shapes) {
  const auto pass = static_cast<std::size_t>(p.pass);
  std::vector<UsedTensor> used;
  for (int i = 0; i < kTensorFields; ++i) {
    const TensorField& field = kTensorTable[i];
    const TensorSpec& spec = p.*field.spec;
    if (!spec.present || (!field.read[pass] && !field.written[pass])) continue;
    UsedTensor tensor{i, spec.dtype, may_broadcast(field) ? without_broadcast(spec, shapes[i]) : shapes[i], spec.strides, {}};
    for (int d = 0; d < 4; ++d) tensor.steps[d] = tensor.shape[d] > 1 ? -1 : 0;
    used.push_back(tensor);
  }
  return used;
}

}  // namespace fulmen

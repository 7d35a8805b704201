#include "runtime/tensor_table.h"

namespace fulmen {

namespace {

using T = AttentionTensors;
using P = Problem;
using Shape = Problem::Shape;

// Shapes, each with its words.
struct Dims {
  Shape (*shape)(const P&);
  const char* (*words)(const P&);
};
constexpr Dims kQueries{[](const P& p) { return p.q_shape(); },
                        [](const P& p) {
                          return p.packed_q() ? "[1, total_q, num_heads, head_dim]"
                                              : "[batch, seqlen_q, num_heads, head_dim]";
                        }};
constexpr Dims kOutputs{[](const P& p) { return p.out_shape(); },
                        [](const P& p) {
                          return p.packed_q() ? "[1, total_q, num_heads, head_dim_v]"
                                              : "[batch, seqlen_q, num_heads, head_dim_v]";
                        }};
constexpr Dims kKeys{[](const P& p) { return p.k_shape(); },
                     [](const P& p) {
                       return p.paged()      ? "[num_pages, page_size, num_kv_heads, head_dim]"
                              : p.packed_k() ? "[1, total_k, num_kv_heads, head_dim]"
                                             : "[batch, seqlen_k, num_kv_heads, head_dim]";
                     }};
constexpr Dims kValues{[](const P& p) { return p.v_shape(); },
                       [](const P& p) {
                         return p.paged()      ? "[num_pages, page_size, num_kv_heads, head_dim_v]"
                                : p.packed_k() ? "[1, total_k, num_kv_heads, head_dim_v]"
                                               : "[batch, seqlen_k, num_kv_heads, head_dim_v]";
                       }};
constexpr Dims kScores{[](const P& p) { return p.score_shape(); },
                       [](const P&) { return "[batch, num_heads, seqlen_q, seqlen_k]"; }};
constexpr Dims kRows{[](const P& p) { return p.lse_shape(); },
                     [](const P& p) {
                       return p.packed_q() ? "[1, num_heads, total_q, 1]"
                                           : "[batch, num_heads, seqlen_q, 1]";
                     }};
constexpr Dims kSlopes{[](const P& p) { return Shape{p.batch, 1, 1, p.num_heads}; },
                       [](const P&) { return "[batch, 1, 1, num_heads]"; }};
constexpr Dims kHeads{[](const P& p) { return Shape{1, 1, 1, p.num_heads}; },
                      [](const P&) { return "[1, 1, 1, num_heads]"; }};
constexpr Dims kBounds{[](const P& p) { return Shape{1, 1, 1, p.batch + 1}; },
                       [](const P&) { return "[1, 1, 1, batch + 1]"; }};
constexpr Dims kSequences{[](const P& p) { return Shape{1, 1, 1, p.batch}; },
                          [](const P&) { return "[1, 1, 1, batch]"; }};
constexpr Dims kKvHeads{[](const P& p) { return Shape{p.batch, 1, 1, p.num_kv_heads}; },
                        [](const P&) { return "[batch, 1, 1, num_kv_heads]"; }};
constexpr Dims kPages{[](const P& p) { return Shape{1, 1, p.batch, p.max_pages}; },
                      [](const P&) { return "[1, 1, batch, max_pages]"; }};

constexpr Dims kBlockCounts{
    [](const P& p) { return Shape{p.batch, p.num_heads, 1, p.query_blocks()}; },
    [](const P&) { return "[batch, num_heads, 1, blocks of queries]"; }};
constexpr Dims kBlockIndices{
    [](const P& p) { return Shape{p.batch, p.num_heads, p.query_blocks(), p.key_blocks()}; },
    [](const P&) { return "[batch, num_heads, blocks of queries, blocks of keys]"; }};

// What the passes do with a tensor.
struct Uses {
  bool read[2], written[2];
};
constexpr Uses kInput{{true, true}, {}}, kForwardResult{{false, true}, {true, false}},
    kGradientInput{{false, true}, {}}, kGradient{{}, {false, true}};

constexpr TensorField row(const char* name, TensorMember<T> tensor, TensorSpec P::* spec,
                          DTypeRule dtype, const Dims& dims, const Uses& uses,
                          Broadcast broadcast = Broadcast::none) {
  return {name,
          tensor,
          spec,
          dtype,
          dims.shape,
          dims.words,
          broadcast,
          {uses.read[0], uses.read[1]},
          {uses.written[0], uses.written[1]}};
}

}  // namespace

constexpr std::array<TensorField, kTensorFields> kTensorTable{{
    row("q", &T::q, &P::q, DTypeRule::of_q, kQueries, kInput),
    row("k", &T::k, &P::k, DTypeRule::of_k, kKeys, kInput),
    row("v", &T::v, &P::v, DTypeRule::of_k, kValues, kInput),
    row("bias", &T::bias, &P::bias, DTypeRule::any_float, kScores, kInput, Broadcast::all_but_last),
    row("keep_mask", &T::keep_mask, &P::keep_mask, DTypeRule::boolean, kScores, kInput,
        Broadcast::all_but_last),
    row("alibi_slopes", &T::alibi_slopes, &P::alibi_slopes, DTypeRule::fp32, kSlopes, kInput,
        Broadcast::all_but_last),
    row("sinks", &T::sinks, &P::sinks, DTypeRule::fp32, kHeads, kInput),
    row("cu_seqlens_q", &T::cu_seqlens_q, &P::cu_seqlens_q, DTypeRule::int32, kBounds, kInput),
    row("cu_seqlens_k", &T::cu_seqlens_k, &P::cu_seqlens_k, DTypeRule::int32, kBounds, kInput),
    row("seqlens_k", &T::seqlens_k, &P::seqlens_k, DTypeRule::int32, kSequences, kInput),
    row("block_table", &T::block_table, &P::block_table, DTypeRule::int32, kPages, kInput),
    row("leftpad_k", &T::leftpad_k, &P::leftpad_k, DTypeRule::int32, kSequences, kInput),
    row("k_scale", &T::k_scale, &P::k_scale, DTypeRule::fp32, kKvHeads, kInput, Broadcast::all),
    row("v_scale", &T::v_scale, &P::v_scale, DTypeRule::fp32, kKvHeads, kInput, Broadcast::all),
    row("kv_num_blocks", &T::kv_num_blocks, &P::kv_num_blocks, DTypeRule::int32, kBlockCounts,
        kInput, Broadcast::all_but_last),
    row("kv_indices", &T::kv_indices, &P::kv_indices, DTypeRule::int32, kBlockIndices, kInput,
        Broadcast::all_but_last),
    row("full_kv_num_blocks", &T::full_kv_num_blocks, &P::full_kv_num_blocks, DTypeRule::int32,
        kBlockCounts, kInput, Broadcast::all_but_last),
    row("full_kv_indices", &T::full_kv_indices, &P::full_kv_indices, DTypeRule::int32,
        kBlockIndices, kInput, Broadcast::all_but_last),
    row("out", &T::out, &P::out, DTypeRule::of_q, kOutputs, kForwardResult),
    row("lse", &T::lse, &P::lse, DTypeRule::fp32, kRows, kForwardResult),
    row("dout", &T::dout, &P::dout, DTypeRule::of_q, kOutputs, kGradientInput),
    row("dlse", &T::dlse, &P::dlse, DTypeRule::fp32, kRows, kGradientInput),
    row("dq", &T::dq, &P::dq, DTypeRule::of_q, kQueries, kGradient),
    row("dk", &T::dk, &P::dk, DTypeRule::of_k, kKeys, kGradient),
    row("dv", &T::dv, &P::dv, DTypeRule::of_k, kValues, kGradient),
    row("dbias", &T::dbias, &P::dbias, DTypeRule::any_float, kScores, kGradient,
        Broadcast::all_but_last),
    row("dsinks", &T::dsinks, &P::dsinks, DTypeRule::fp32, kHeads, kGradient),
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

Problem::Shape without_broadcast(const TensorSpec& spec, Problem::Shape shape) noexcept {
  for (int d = 0; d < 4; ++d) {
    if (spec.strides[d] == 0 && shape[d] > 1) shape[d] = 1;
  }
  return shape;
}

std::array<Shape, kTensorFields> shapes_of(const Problem& p) {
  std::array<Shape, kTensorFields> shapes{};
  for (int i = 0; i < kTensorFields; ++i) {
    const TensorField& field = kTensorTable[i];
    shapes[i] = field.shape(p);
    // A gradient is stored as the sum over the dims that it sums over.
    if (field.broadcast != Broadcast::none &&
        field.written[static_cast<std::size_t>(Pass::backward)]) {
      shapes[i] = without_broadcast(p.*field.spec, shapes[i]);
    }
  }
  return shapes;
}

std::vector<UsedTensor> used_tensors(const Problem& p,
                                     const std::array<Shape, kTensorFields>& shapes) {
  const auto pass = static_cast<std::size_t>(p.pass);
  std::vector<UsedTensor> used;
  for (int i = 0; i < kTensorFields; ++i) {
    const TensorField& field = kTensorTable[i];
    const TensorSpec& spec = p.*field.spec;
    if (!spec.present || (!field.read[pass] && !field.written[pass])) continue;
    UsedTensor tensor{
        i,
        spec.dtype,
        field.broadcast != Broadcast::none ? without_broadcast(spec, shapes[i]) : shapes[i],
        spec.strides,
        {}};
    for (int d = 0; d < 4; ++d) tensor.steps[d] = tensor.shape[d] > 1 ? -1 : 0;
    used.push_back(tensor);
  }
  return used;
}

}  // namespace fulmen

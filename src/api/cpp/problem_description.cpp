// What a problem amounts to: flops, bytes, text, hash.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>

#include "fulmen/printable.h"
#include "fulmen/problem.h"
#include "fulmen/tensor_fields.h"

namespace fulmen {
namespace {

// The sum of clamp(i + start, 0, limit) over 0 <= i < count.
double sum_of_clamped(int64_t start, int64_t count, int64_t limit) {
  const auto m = static_cast<double>(limit);
  // The sum of clamp(t, 0, limit) over t < end: a triangle, then a rectangle.
  const auto up_to = [m](double end) {
    if (end <= 0) return 0.0;
    return end <= m ? end * (end - 1) / 2 : m * (m + 1) / 2 + (end - m - 1) * m;
  };
  return up_to(static_cast<double>(start + count)) - up_to(static_cast<double>(start));
}

// " score_mod="score + slopes[h]" mask_mod="q >= k" tensors=slopes:fp32[8]"
std::string words_of(const ScoreFunctions& functions) {
  std::string text;
  if (!functions.score_mod().empty())
    text += fmt::format(" score_mod=\"{}\"", printable(functions.score_mod()));
  if (!functions.mask_mod().empty())
    text += fmt::format(" mask_mod=\"{}\"", printable(functions.mask_mod()));
  for (const ScoreFunctions::Tensor& tensor : functions.tensors()) {
    text += fmt::format(" {}={}", tensor.name, to_string(tensor.dtype));
    for (int d = 0; d < tensor.dims; ++d)
      text += fmt::format("{}{}", d == 0 ? ':' : 'x', tensor.shape[d]);
    if (tensor.has_gradient)
      text += fmt::format(" d{}={}", tensor.name, to_string(tensor.gradient_dtype));
  }
  return text;
}

}  // namespace

double Problem::flops() const noexcept {
  // Query i attends the keys from clamp(i + diagonal - window_left) to before
  // clamp(i + diagonal + window_right + 1).
  const double all = static_cast<double>(seqlen_q) * static_cast<double>(seqlen_k);
  const int64_t offset = variable_lengths() && !top_left ? seqlen_k - seqlen_q : diagonal;
  const double ends =
      window_right < 0 ? all : sum_of_clamped(offset + window_right + 1, seqlen_q, seqlen_k);
  const double starts =
      window_left < 0 ? 0 : sum_of_clamped(offset - window_left, seqlen_q, seqlen_k);
  const auto dims = static_cast<double>(pass == Pass::forward ? head_dim + head_dim_v
                                                              : 3 * head_dim + 2 * head_dim_v);
  // The rows that the sums are over.
  const auto rows = static_cast<double>(batch) * static_cast<double>(seqlen_q);
  const double share = packed_q() && rows > 0 ? static_cast<double>(total_q) / rows : 1;
  return 2.0 * static_cast<double>(num_heads) * static_cast<double>(batch) * (ends - starts) *
         dims * share;
}

double Problem::bytes() const noexcept {
  const auto size = static_cast<double>(size_of(dtype));
  const auto b = static_cast<double>(batch), h = static_cast<double>(num_heads),
             kv = static_cast<double>(num_kv_heads);
  const auto sq = static_cast<double>(seqlen_q), sk = static_cast<double>(seqlen_k);
  const auto d = static_cast<double>(head_dim), dv = static_cast<double>(head_dim_v);
  const double queries = packed_q() ? static_cast<double>(total_q) : b * sq;
  const double keys = packed_k() ? static_cast<double>(total_k) : b * sk;
  const auto row_bytes = [](DType of, int64_t dim) {
    return static_cast<double>(row_elements(of, dim) * size_of(of));
  };
  const double k_row = row_bytes(k_dtype, head_dim), v_row = row_bytes(v_dtype, head_dim_v);
  double total = (d + dv) * size * h * queries + (k_row + v_row) * kv * keys;
  if (pass == Pass::backward) {
    total += size * h * queries * dv;  // dout
    total += size * (this->dq.present ? h * queries * d : 0);
    total += kv * keys * ((this->dk.present ? k_row : 0) + (this->dv.present ? v_row : 0));
  }
  for (const TensorSpec* spec : {&bias, &keep_mask, &dbias}) {
    if (!spec->present) continue;
    total += static_cast<double>(size_of(spec->dtype)) * (spec->strides[0] != 0 ? b : 1) *
             (spec->strides[1] != 0 ? h : 1) * (spec->strides[2] != 0 ? sq : 1) * sk;
  }
  for (const TensorSpec* spec : {&lse, &dlse}) {
    if (spec->present) total += 4.0 * h * queries;
  }
  return total;
}

std::string to_string(const Problem& p) {
  std::string text = fmt::format(
      "{}{} b={} sq={} sk={} h={}/{} d={}", p.pass == Pass::backward ? "backward " : "",
      to_string(p.dtype), p.batch, p.seqlen_q, p.seqlen_k, p.num_heads, p.num_kv_heads, p.head_dim);
  if (p.head_dim_v != p.head_dim) text += fmt::format("/{}", p.head_dim_v);
  if (p.values_in_keys) text += " values_in_keys";
  if (p.precision != Precision::exact) text += fmt::format(" precision={}", to_string(p.precision));
  if (p.k_dtype != p.dtype) text += fmt::format(" k={}", to_string(p.k_dtype));
  if (p.v_dtype != p.dtype) text += fmt::format(" v={}", to_string(p.v_dtype));
  text += fmt::format(" scale={:.4g}", p.softmax_scale);
  if (p.softcap > 0) text += fmt::format(" softcap={:g}", p.softcap);
  if (p.window_left >= 0 || p.window_right >= 0) {
    text += fmt::format(" window={},{}", p.window_left, p.window_right);
    text += p.variable_lengths() ? (p.top_left ? " top_left" : " bottom_right")
                                 : fmt::format(" diagonal={}", p.diagonal);
  }
  if (p.packed_q()) text += fmt::format(" packed_q={}", p.total_q);
  if (p.packed_k()) text += fmt::format(" packed_k={}", p.total_k);
  if (p.paged()) text += fmt::format(" pages={}x{} of {}", p.max_pages, p.page_size, p.num_pages);
  if (p.padded_k > 0) text += fmt::format(" padded_k={}", p.padded_k);
  if (p.seqlens_k.present) text += " seqlens_k";
  if (p.leftpad_k.present) text += " leftpad_k";
  for (const auto& [name, scale] :
       {std::pair{"k_scale", &p.k_scale}, {"v_scale", &p.v_scale}, {"q_scale", &p.q_scale}}) {
    if (scale->present)
      text += fmt::format(" {}={} strides={}", name, to_string(scale->dtype), scale->strides);
  }
  if (p.bias.present)
    text += fmt::format(" bias={} strides={}", to_string(p.bias.dtype), p.bias.strides);
  if (p.keep_mask.present) text += fmt::format(" keep_mask strides={}", p.keep_mask.strides);
  if (p.mask_block_q > 0) text += fmt::format(" blocks={}x{}", p.mask_block_q, p.mask_block_k);
  for (const auto& [name, spec] : {std::pair{" kv_num_blocks", &p.kv_num_blocks},
                                   {" kv_indices", &p.kv_indices},
                                   {" full_kv_num_blocks", &p.full_kv_num_blocks},
                                   {" full_kv_indices", &p.full_kv_indices}}) {
    if (spec->present) text += fmt::format("{} strides={}", name, spec->strides);
  }
  text += words_of(p.functions);
  if (p.alibi_slopes.present) text += " alibi";
  if (p.sinks.present) text += " sinks";
  if (p.dropout > 0) text += fmt::format(" dropout={:.5g}", p.dropout / 65536.0);
  if (p.pass == Pass::forward) {
    if (p.lse.present) text += " lse";
    return text;
  }
  if (p.dlse.present) text += " dlse";
  if (!p.deterministic) text += " nondeterministic";
  text += " gives";
  for (const auto& [name, spec] :
       {std::pair{" dq", &p.dq}, {" dk", &p.dk}, {" dv", &p.dv}, {" dsinks", &p.dsinks}}) {
    if (spec->present) text += name;
  }
  if (p.dbias.present)
    text += fmt::format(" dbias={} strides={}", to_string(p.dbias.dtype), p.dbias.strides);
  return text;
}

std::size_t hash_value(const Problem& p) noexcept {
  std::size_t hash = 0;
  const auto mix = [&hash](int64_t x) {
    hash ^= std::hash<int64_t>{}(x) + 0x9E3779B97F4A7C15ULL + (hash << 6U) + (hash >> 2U);
  };
  for (const int64_t x : {static_cast<int64_t>(p.dtype),
                          static_cast<int64_t>(p.k_dtype),
                          static_cast<int64_t>(p.v_dtype),
                          p.batch,
                          p.seqlen_q,
                          p.seqlen_k,
                          p.num_heads,
                          p.num_kv_heads,
                          p.head_dim,
                          p.head_dim_v,
                          p.diagonal,
                          p.window_left,
                          p.window_right,
                          static_cast<int64_t>(p.pass),
                          static_cast<int64_t>(p.dropout),
                          static_cast<int64_t>(p.deterministic),
                          static_cast<int64_t>(p.precision),
                          p.total_q,
                          p.total_k,
                          p.padded_k,
                          p.num_pages,
                          p.page_size,
                          p.max_pages,
                          static_cast<int64_t>(p.top_left),
                          static_cast<int64_t>(p.values_in_keys)}) {
    mix(x);
  }
  mix(static_cast<int64_t>(std::hash<float>{}(p.softmax_scale)));
  mix(static_cast<int64_t>(std::hash<float>{}(p.softcap)));
  for (const TensorField& field : kTensorTable) {
    const TensorSpec& spec = p.*field.spec;
    mix(static_cast<int64_t>(spec.dtype) * 2 + static_cast<int64_t>(spec.present));
    for (const int64_t stride : spec.strides) mix(stride);
  }
  mix(p.mask_block_q * 512 + p.mask_block_k);
  mix(static_cast<int64_t>(p.functions.hash()));
  return hash;
}

}  // namespace fulmen

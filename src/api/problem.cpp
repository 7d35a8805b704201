// Every check of a call's tensors and options, each once.
#include "fulmen/problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <new>

namespace fulmen {
namespace {

using Shape = std::array<int64_t, 4>;

constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kMaxLength = int64_t{1} << 40;  // of any dim: far over any memory, and products of index and stride stay exact

Status invalid(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

bool is_float(DType dtype) { return dtype == DType::fp32 || dtype == DType::fp16 || dtype == DType::bf16; }
// A dtype for a message: one that came as a number through the C ABI shows its value.
std::string name_of(DType dtype) {
  const auto value = static_cast<int>(dtype);
  return value >= 0 && value <= static_cast<int>(DType::boolean) ? to_string(dtype) : fmt::format("{}", value);
}
bool absent(const Tensor& tensor) { return tensor.data == nullptr && tensor.shape == Shape{}; }

// Bits of a number of elements and of the farthest one's offset: more than can be mapped, yet the products that planning and
// kernels make of sizes stay exact. Scores may be broadcast to far more elements than lie in memory.
constexpr int kOffsetBits = 48;
constexpr int kScoreBits = 60;

bool extent_fits(const Tensor& t, int element_bits) {
  int64_t elements = 1, last = 0;  // an empty dim counts as 1: kernels multiply the others
  for (int d = 0; d < 4; ++d) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(elements, std::max<int64_t>(t.shape[d], 1), &elements)) return false;
    if (t.shape[d] > 1 && __builtin_mul_overflow(t.shape[d] - 1, t.strides[d], &reach)) return false;
    if (__builtin_add_overflow(last, reach, &last)) return false;
  }
  return elements <= int64_t{1} << element_bits && last < int64_t{1} << kOffsetBits;
}

// What every tensor obeys: sizes and strides that address memory, the last dim contiguous.
Status check_view(const char* name, const Tensor& t, int element_bits = kOffsetBits) {
  for (int d = 0; d < 4; ++d) {
    if (t.shape[d] < 0 || t.shape[d] > kMaxLength) {
      return invalid(fmt::format("{}.shape is {}: each dim must be 0 to 2^40", name, t.shape));
    }
    if (t.shape[d] > 1 && t.strides[d] < 0)
      return invalid(fmt::format("{}.strides is {}: negative strides are not accepted", name, t.strides));
  }
  if (t.shape[3] > 1 && t.strides[3] != 1) {
    return invalid(fmt::format("{}.strides is {}: the last dim must be contiguous, stride 1", name, t.strides));
  }
  if (!extent_fits(t, element_bits)) {
    return invalid(
        fmt::format("{} with shape {} and strides {} is more memory than can be: up to 2^{} elements, the farthest 2^{} away, are "
                    "accepted",
                    name, t.shape, t.strides, element_bits, kOffsetBits));
  }
  return {};
}

// An output's elements lie apart: sorted by stride, each dim steps over the whole extent of the smaller ones.
bool overlaps_itself(const Tensor& t) {
  for (const int64_t size : t.shape) {
    if (size == 0) return false;
  }
  std::array<int, 4> order{0, 1, 2, 3};
  for (int i = 0; i < 4; ++i) {
    for (int j = i + 1; j < 4; ++j) {
      if (t.strides[order[j]] < t.strides[order[i]]) std::swap(order[i], order[j]);
    }
  }
  int64_t extent = 0;  // largest offset reached by the dims so far
  for (const int d : order) {
    if (t.shape[d] == 1) continue;
    if (t.strides[d] <= extent) return true;
    extent += (t.shape[d] - 1) * t.strides[d];
  }
  return false;
}

TensorSpec spec_of(const Tensor& t) {
  TensorSpec spec{t.dtype, true, t.strides};
  for (int d = 0; d < 4; ++d) {
    if (t.shape[d] <= 1) spec.strides[d] = d == 3 ? 1 : 0;
  }
  return spec;
}

Status check_shape(const char* name, const Tensor& t, const Shape& want, const char* meaning) {
  if (t.shape == want) return {};
  return invalid(fmt::format("{}.shape is {}: {} = {} is needed", name, t.shape, meaning, want));
}

Status check_main(const AttentionTensors& a, Problem& p) {
  struct Named {
    const char* name;
    const Tensor& tensor;
  };
  for (const auto& [name, tensor] : {Named{"q", a.q}, Named{"k", a.k}, Named{"v", a.v}, Named{"out", a.out}}) {
    if (absent(tensor)) return invalid(fmt::format("{} is missing: q, k, v and out are always needed", name));
    if (!is_float(tensor.dtype)) {
      return invalid(fmt::format("{}.dtype is {}: fp32, fp16 and bf16 are accepted", name, name_of(tensor.dtype)));
    }
    if (tensor.dtype != a.q.dtype) {
      return invalid(fmt::format("{}.dtype is {}, q.dtype is {}: q, k, v and out must agree", name, name_of(tensor.dtype),
                                 name_of(a.q.dtype)));
    }
    if (Status status = check_view(name, tensor); !status.ok()) return status;
  }
  p.dtype = a.q.dtype;
  p.batch = a.q.shape[0];
  p.seqlen_q = a.q.shape[1];
  p.num_heads = a.q.shape[2];
  p.head_dim = a.q.shape[3];
  p.seqlen_k = a.k.shape[1];
  p.num_kv_heads = a.k.shape[2];
  p.head_dim_v = a.v.shape[3];
  if (p.head_dim < 1 || p.head_dim > kMaxHeadDim) {
    return invalid(fmt::format("q.shape is {}: head_dim is {}, 1 to {} are accepted", a.q.shape, p.head_dim, kMaxHeadDim));
  }
  if (p.head_dim_v < 1 || p.head_dim_v > kMaxHeadDim) {
    return invalid(fmt::format("v.shape is {}: head_dim_v is {}, 1 to {} are accepted", a.v.shape, p.head_dim_v, kMaxHeadDim));
  }
  if (p.num_heads < 1) return invalid(fmt::format("q.shape is {}: num_heads must be at least 1", a.q.shape));
  if (p.num_kv_heads < 1 || p.num_heads % p.num_kv_heads != 0) {
    return invalid(
        fmt::format("k.shape is {}: num_kv_heads is {}, it must divide num_heads = {}", a.k.shape, p.num_kv_heads, p.num_heads));
  }
  Status status =
      check_shape("k", a.k, {p.batch, p.seqlen_k, p.num_kv_heads, p.head_dim}, "[batch, seqlen_k, num_kv_heads, head_dim]");
  if (!status.ok()) return status;
  status =
      check_shape("v", a.v, {p.batch, p.seqlen_k, p.num_kv_heads, p.head_dim_v}, "[batch, seqlen_k, num_kv_heads, head_dim_v]");
  if (!status.ok()) return status;
  status = check_shape("out", a.out, {p.batch, p.seqlen_q, p.num_heads, p.head_dim_v}, "[batch, seqlen_q, num_heads, head_dim_v]");
  if (!status.ok()) return status;
  p.q = spec_of(a.q);
  p.k = spec_of(a.k);
  p.v = spec_of(a.v);
  p.out = spec_of(a.out);
  return {};
}

// bias and keep_mask: [batch, num_heads, seqlen_q, seqlen_k], each dim but the last may be 1.
Status check_score_tensor(const char* name, const Tensor& t, const Problem& p, TensorSpec& spec) {
  if (Status status = check_view(name, t, kScoreBits); !status.ok()) return status;
  const Shape want{p.batch, p.num_heads, p.seqlen_q, p.seqlen_k};
  for (int d = 0; d < 4; ++d) {
    if (t.shape[d] != want[d] && (d == 3 || t.shape[d] != 1)) {
      return invalid(
          fmt::format("{}.shape is {}: [batch, num_heads, seqlen_q, seqlen_k] = {} is needed, where each dim but the last may be 1",
                      name, t.shape, want));
    }
  }
  spec = spec_of(t);
  return {};
}

// lse and dlse: [batch, num_heads, seqlen_q, 1].
Status check_row_numbers(const char* name, const Tensor& t, const Problem& p) {
  if (t.dtype != DType::fp32) return invalid(fmt::format("{}.dtype is {}: fp32 is needed", name, name_of(t.dtype)));
  if (Status status = check_view(name, t); !status.ok()) return status;
  return check_shape(name, t, {p.batch, p.num_heads, p.seqlen_q, 1}, "[batch, num_heads, seqlen_q, 1]");
}

Status check_output(const char* name, const Tensor& t) {
  if (!overlaps_itself(t)) return {};
  return invalid(
      fmt::format("{} with shape {} and strides {} overlaps itself: each element needs its own place", name, t.shape, t.strides));
}

Status check_optional(const AttentionTensors& a, Problem& p) {
  if (!absent(a.bias)) {
    if (!is_float(a.bias.dtype)) {
      return invalid(fmt::format("bias.dtype is {}: fp32, fp16 and bf16 are accepted", name_of(a.bias.dtype)));
    }
    if (Status status = check_score_tensor("bias", a.bias, p, p.bias); !status.ok()) return status;
  }
  if (!absent(a.keep_mask)) {
    if (a.keep_mask.dtype != DType::boolean) {
      return invalid(fmt::format("keep_mask.dtype is {}: boolean (one byte, true = attend) is needed", name_of(a.keep_mask.dtype)));
    }
    if (Status status = check_score_tensor("keep_mask", a.keep_mask, p, p.keep_mask); !status.ok()) return status;
  }
  struct Vector {
    const char* name;
    const Tensor& tensor;
    TensorSpec& spec;
    bool per_batch;
  };
  for (const Vector& v : {Vector{"alibi_slopes", a.alibi_slopes, p.alibi_slopes, true}, Vector{"sinks", a.sinks, p.sinks, false}}) {
    if (absent(v.tensor)) continue;
    if (v.tensor.dtype != DType::fp32)
      return invalid(fmt::format("{}.dtype is {}: fp32 is needed", v.name, name_of(v.tensor.dtype)));
    if (Status status = check_view(v.name, v.tensor); !status.ok()) return status;
    const bool batched = v.per_batch && v.tensor.shape == Shape{p.batch, 1, 1, p.num_heads};
    if (!batched && v.tensor.shape != Shape{1, 1, 1, p.num_heads}) {
      return invalid(fmt::format("{}.shape is {}: [{}, 1, 1, num_heads] with num_heads = {} is needed", v.name, v.tensor.shape,
                                 v.per_batch ? "1 or batch" : "1", p.num_heads));
    }
    v.spec = spec_of(v.tensor);
  }
  if (!absent(a.lse)) {
    if (Status status = check_row_numbers("lse", a.lse, p); !status.ok()) return status;
    if (Status status = check_output("lse", a.lse); !status.ok()) return status;
    p.lse = spec_of(a.lse);
  }
  return {};
}

// A gradient of q, k, v: as the tensor itself.
Status check_gradient(const char* name, const Tensor& t, DType dtype, const Shape& want, const char* meaning, TensorSpec& spec) {
  if (absent(t)) return {};
  if (t.dtype != dtype) {
    return invalid(fmt::format("{}.dtype is {}, q.dtype is {}: they must agree", name, name_of(t.dtype), name_of(dtype)));
  }
  if (Status status = check_view(name, t); !status.ok()) return status;
  if (Status status = check_shape(name, t, want, meaning); !status.ok()) return status;
  if (Status status = check_output(name, t); !status.ok()) return status;
  spec = spec_of(t);
  return {};
}

Status check_bias_gradient(const AttentionTensors& a, Problem& p) {
  if (absent(a.dbias)) return {};
  if (!p.bias.present) return invalid("dbias is given, bias is missing: without a bias it has no gradient");
  if (!is_float(a.dbias.dtype)) {
    return invalid(fmt::format("dbias.dtype is {}: fp32, fp16 and bf16 are accepted", name_of(a.dbias.dtype)));
  }
  if (Status status = check_score_tensor("dbias", a.dbias, p, p.dbias); !status.ok()) return status;
  return check_output("dbias", a.dbias);
}

Status check_backward(const AttentionTensors& a, Problem& p) {
  p.pass = Pass::backward;
  if (absent(a.lse)) return invalid("lse is missing: the backward pass needs the one that the forward pass gave");
  if (absent(a.dout)) return invalid("dout is missing: the backward pass needs the gradient of out");
  const Shape q{p.batch, p.seqlen_q, p.num_heads, p.head_dim}, out{p.batch, p.seqlen_q, p.num_heads, p.head_dim_v};
  const Shape k{p.batch, p.seqlen_k, p.num_kv_heads, p.head_dim}, v{p.batch, p.seqlen_k, p.num_kv_heads, p.head_dim_v};
  if (a.dout.dtype != p.dtype) {
    return invalid(fmt::format("dout.dtype is {}, q.dtype is {}: they must agree", name_of(a.dout.dtype), name_of(p.dtype)));
  }
  if (Status status = check_view("dout", a.dout); !status.ok()) return status;
  if (Status status = check_shape("dout", a.dout, out, "[batch, seqlen_q, num_heads, head_dim_v]"); !status.ok()) return status;
  p.dout = spec_of(a.dout);
  if (!absent(a.dlse)) {
    if (Status status = check_row_numbers("dlse", a.dlse, p); !status.ok()) return status;
    p.dlse = spec_of(a.dlse);
  }
  Status status = check_gradient("dq", a.dq, p.dtype, q, "[batch, seqlen_q, num_heads, head_dim]", p.dq);
  if (status.ok()) status = check_gradient("dk", a.dk, p.dtype, k, "[batch, seqlen_k, num_kv_heads, head_dim]", p.dk);
  if (status.ok()) status = check_gradient("dv", a.dv, p.dtype, v, "[batch, seqlen_k, num_kv_heads, head_dim_v]", p.dv);
  if (status.ok()) status = check_bias_gradient(a, p);
  if (!status.ok()) return status;
  if (!absent(a.dsinks)) {
    if (!p.sinks.present) return invalid("dsinks is given, sinks is missing: without sinks they have no gradient");
    if (a.dsinks.dtype != DType::fp32) return invalid(fmt::format("dsinks.dtype is {}: fp32 is needed", name_of(a.dsinks.dtype)));
    if (Status bad = check_view("dsinks", a.dsinks); !bad.ok()) return bad;
    if (Status bad = check_shape("dsinks", a.dsinks, {1, 1, 1, p.num_heads}, "[1, 1, 1, num_heads]"); !bad.ok()) return bad;
    p.dsinks = spec_of(a.dsinks);
  }
  if (!p.dq.present && !p.dk.present && !p.dv.present && !p.dbias.present && !p.dsinks.present) {
    return invalid("dq, dk, dv, dbias and dsinks are all missing: there is nothing to compute");
  }
  return {};
}

Status check_options(const AttentionOptions& o, Problem& p) {
  p.softmax_scale = o.softmax_scale.value_or(1.0F / std::sqrt(static_cast<float>(p.head_dim)));
  if (!std::isfinite(p.softmax_scale))
    return invalid(fmt::format("softmax_scale is {}: a finite number is needed", p.softmax_scale));
  if (!std::isfinite(o.softcap) || o.softcap < 0) {
    return invalid(fmt::format("softcap is {}: a finite number, 0 (off) or above, is needed", o.softcap));
  }
  p.softcap = o.softcap;
  if (o.causal != Causal::none && o.causal != Causal::bottom_right && o.causal != Causal::top_left) {
    return invalid(
        fmt::format("causal is {}: none (0), bottom_right (1) and top_left (2) are accepted", static_cast<int>(o.causal)));
  }
  if (o.window_left < -1) return invalid(fmt::format("window_left is {}: -1 (unlimited) or above is accepted", o.window_left));
  if (o.window_right < -1) return invalid(fmt::format("window_right is {}: -1 (unlimited) or above is accepted", o.window_right));
  if (!(o.dropout >= 0 && o.dropout < 1)) {
    return invalid(fmt::format("dropout is {}: a probability, 0 (off) or above and below 1, is needed", o.dropout));
  }
  constexpr float kDropoutSteps = 65536;
  p.dropout = std::min(static_cast<int>(std::lround(o.dropout * kDropoutSteps)), static_cast<int>(kDropoutSteps) - 1);
  p.deterministic = o.deterministic;
  if (o.num_threads < 0)
    return invalid(fmt::format("num_threads is {}: 0 (the caller's setting) or above is accepted", o.num_threads));
  // Wider than any sequence is unlimited; clipping keeps sums of indices exact.
  p.window_left = o.window_left > kMaxLength ? -1 : o.window_left;
  p.window_right = o.causal != Causal::none ? 0 : (o.window_right > kMaxLength ? -1 : o.window_right);
  p.diagonal = o.causal == Causal::top_left ? 0 : p.seqlen_k - p.seqlen_q;
  return {};
}

}  // namespace

Result<Problem> make_problem(const AttentionTensors& tensors, const AttentionOptions& options) {
  try {
    Problem p;
    if (Status status = check_main(tensors, p); !status.ok()) return status;
    if (Status status = check_optional(tensors, p); !status.ok()) return status;
    if (Status status = check_output("out", tensors.out); !status.ok()) return status;
    if (Status status = check_options(options, p); !status.ok()) return status;
    return p;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "no memory to describe the problem");
  }
}

Result<Problem> make_backward_problem(const AttentionTensors& tensors, const AttentionOptions& options) {
  try {
    Problem p;
    if (Status status = check_main(tensors, p); !status.ok()) return status;
    if (Status status = check_optional(tensors, p); !status.ok()) return status;
    if (Status status = check_backward(tensors, p); !status.ok()) return status;
    if (Status status = check_options(options, p); !status.ok()) return status;
    return p;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "no memory to describe the problem");
  }
}

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

}  // namespace

double Problem::flops() const noexcept {
  // Query i attends the keys from clamp(i + diagonal - window_left) to before clamp(i + diagonal + window_right + 1).
  const double all = static_cast<double>(seqlen_q) * static_cast<double>(seqlen_k);
  const double ends = window_right < 0 ? all : sum_of_clamped(diagonal + window_right + 1, seqlen_q, seqlen_k);
  const double starts = window_left < 0 ? 0 : sum_of_clamped(diagonal - window_left, seqlen_q, seqlen_k);
  const auto dims = static_cast<double>(pass == Pass::forward ? head_dim + head_dim_v : 3 * head_dim + 2 * head_dim_v);
  return 2.0 * static_cast<double>(batch * num_heads) * (ends - starts) * dims;
}

double Problem::bytes() const noexcept {
  const auto size = static_cast<double>(size_of(dtype));
  const auto b = static_cast<double>(batch), h = static_cast<double>(num_heads), kv = static_cast<double>(num_kv_heads);
  const auto sq = static_cast<double>(seqlen_q), sk = static_cast<double>(seqlen_k);
  const auto d = static_cast<double>(head_dim), dv = static_cast<double>(head_dim_v);
  double total = size * b * (d + dv) * (h * sq + kv * sk);
  if (pass == Pass::backward) {
    total += size * b * h * sq * dv;  // dout
    total += size * b * (this->dq.present ? h * sq * d : 0);
    total += size * b * kv * sk * ((this->dk.present ? d : 0) + (this->dv.present ? dv : 0));
  }
  for (const TensorSpec* spec : {&bias, &keep_mask, &dbias}) {
    if (!spec->present) continue;
    total += static_cast<double>(size_of(spec->dtype)) * (spec->strides[0] != 0 ? b : 1) * (spec->strides[1] != 0 ? h : 1) *
             (spec->strides[2] != 0 ? sq : 1) * sk;
  }
  for (const TensorSpec* spec : {&lse, &dlse}) {
    if (spec->present) total += 4.0 * b * h * sq;
  }
  return total;
}

std::string to_string(const Problem& p) {
  std::string text = fmt::format("{}{} b={} sq={} sk={} h={}/{} d={}", p.pass == Pass::backward ? "backward " : "",
                                 to_string(p.dtype), p.batch, p.seqlen_q, p.seqlen_k, p.num_heads, p.num_kv_heads, p.head_dim);
  if (p.head_dim_v != p.head_dim) text += fmt::format("/{}", p.head_dim_v);
  text += fmt::format(" scale={:.4g}", p.softmax_scale);
  if (p.softcap > 0) text += fmt::format(" softcap={:g}", p.softcap);
  if (p.window_left >= 0 || p.window_right >= 0) {
    text += fmt::format(" window={},{} diagonal={}", p.window_left, p.window_right, p.diagonal);
  }
  if (p.bias.present) text += fmt::format(" bias={} strides={}", to_string(p.bias.dtype), p.bias.strides);
  if (p.keep_mask.present) text += fmt::format(" keep_mask strides={}", p.keep_mask.strides);
  if (p.alibi_slopes.present) text += " alibi";
  if (p.sinks.present) text += " sinks";
  if (p.dropout > 0) text += fmt::format(" dropout={:.5g}", p.dropout / 65536.0);
  if (p.deterministic) text += " deterministic";
  if (p.pass == Pass::forward) {
    if (p.lse.present) text += " lse";
    return text;
  }
  if (p.dlse.present) text += " dlse";
  text += " gives";
  for (const auto& [name, spec] : {std::pair{" dq", &p.dq}, {" dk", &p.dk}, {" dv", &p.dv}, {" dsinks", &p.dsinks}}) {
    if (spec->present) text += name;
  }
  if (p.dbias.present) text += fmt::format(" dbias={} strides={}", to_string(p.dbias.dtype), p.dbias.strides);
  return text;
}

std::size_t hash_value(const Problem& p) noexcept {
  std::size_t hash = 0;
  const auto mix = [&hash](int64_t x) { hash ^= std::hash<int64_t>{}(x) + 0x9E3779B97F4A7C15ULL + (hash << 6U) + (hash >> 2U); };
  for (const int64_t x : {static_cast<int64_t>(p.dtype), p.batch, p.seqlen_q, p.seqlen_k, p.num_heads, p.num_kv_heads, p.head_dim,
                          p.head_dim_v, p.diagonal, p.window_left, p.window_right, static_cast<int64_t>(p.pass),
                          static_cast<int64_t>(p.dropout), static_cast<int64_t>(p.deterministic)}) {
    mix(x);
  }
  mix(static_cast<int64_t>(std::hash<float>{}(p.softmax_scale)));
  mix(static_cast<int64_t>(std::hash<float>{}(p.softcap)));
  for (const TensorSpec* spec : {&p.q, &p.k, &p.v, &p.out, &p.bias, &p.keep_mask, &p.alibi_slopes, &p.sinks, &p.lse, &p.dout,
                                 &p.dlse, &p.dq, &p.dk, &p.dv, &p.dbias, &p.dsinks}) {
    mix(static_cast<int64_t>(spec->dtype) * 2 + static_cast<int64_t>(spec->present));
    for (const int64_t stride : spec->strides) mix(stride);
  }
  return hash;
}

}  // namespace fulmen

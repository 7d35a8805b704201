#include "support/attention_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "runtime/float_formats.h"
#include "support/huge_bias.h"

namespace fulmen::testing {
namespace {

constexpr unsigned char kPoison = 0xFF;  // all ones is NaN in every dtype

const char* name_of(Layout layout) {
  constexpr std::array<const char*, 5> kNames{"bshd", "bhsd", "sbhd", "packed_qkv", "odd_strides"};
  return kNames[static_cast<std::size_t>(layout)];
}

std::string broadcast_text(const std::array<bool, 3>& broadcast) {
  return fmt::format("[{},{},{},k]", broadcast[0] ? "1" : "b", broadcast[1] ? "1" : "h",
                     broadcast[2] ? "1" : "q");
}

int64_t offset(const Tensor& t, const std::array<int64_t, 4>& index) {
  int64_t sum = 0;
  for (std::size_t n = 0; n < 4; ++n) sum += t.shape[n] == 1 ? 0 : index[n] * t.strides[n];
  return sum;
}

template <class Body>
void for_each(const Tensor& t, const Body& body) {
  for (int64_t a = 0; a < t.shape[0]; ++a) {
    for (int64_t b = 0; b < t.shape[1]; ++b) {
      for (int64_t c = 0; c < t.shape[2]; ++c) {
        for (int64_t d = 0; d < t.shape[3]; ++d) body(std::array<int64_t, 4>{a, b, c, d});
      }
    }
  }
}

}  // namespace

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::string to_string(const CaseSpec& s) {
  std::string text =
      fmt::format("seed={} {} b={} sq={} sk={} h={}/{} d={}/{} {} flush={}", test_seed(),
                  fulmen::to_string(s.dtype), s.batch, s.seqlen_q, s.seqlen_k, s.num_heads,
                  s.num_kv_heads, s.head_dim, s.head_dim_v, name_of(s.layout),
                  s.flush == GuardedBuffer::Flush::end ? "end" : "start");
  if (s.causal != Causal::none)
    text += s.causal == Causal::top_left ? " causal=top_left" : " causal=bottom_right";
  if (s.window_left >= 0 || s.window_right >= 0)
    text += fmt::format(" window={},{}", s.window_left, s.window_right);
  if (s.softcap > 0) text += fmt::format(" softcap={}", s.softcap);
  if (s.scale != 0) text += fmt::format(" scale={}", s.scale);
  if (s.bias)
    text += fmt::format(" bias={}{}", fulmen::to_string(s.bias_dtype),
                        broadcast_text(s.bias_broadcast));
  if (s.huge_bias) text += " huge_bias";
  if (s.keep) {
    text +=
        fmt::format(" keep={} pattern={} share={} documents={}", broadcast_text(s.keep_broadcast),
                    static_cast<int>(s.keep_pattern), s.keep_share, s.keep_documents);
  }
  if (s.nan_in_masked) text += " nan_in_masked";
  if (s.alibi != 0) text += fmt::format(" alibi={}", s.alibi);
  if (s.sinks) text += " sinks";
  if (s.values_in_keys) text += " values_in_keys";
  if (!s.lse) text += " no_lse";
  if (s.packed_q) text += " packed_q";
  if (s.packed_k) text += " packed_k";
  if (s.used_k) text += " used_k";
  if (s.page_size > 0) text += fmt::format(" page_size={}", s.page_size);
  if (s.leftpad_k) text += " leftpad_k";
  if (s.even_lengths) text += " even_lengths";
  if (s.quantized) {
    text += fmt::format(" k={} v={} scales={},{} of {}{}", fulmen::to_string(s.k_dtype),
                        fulmen::to_string(s.v_dtype), static_cast<int>(s.k_scale),
                        static_cast<int>(s.v_scale), fulmen::to_string(s.scale_dtype),
                        s.q_scale ? " q_scale" : "");
  }
  if (s.dropout > 0) text += fmt::format(" dropout={}", s.dropout);
  if (s.backward) {
    text += fmt::format(" backward gradients={}{}{}{}{}", s.gradients[0] ? "q" : "",
                        s.gradients[1] ? "k" : "", s.gradients[2] ? "v" : "",
                        s.gradients[3] ? "b" : "", s.gradients[4] ? "s" : "");
    if (s.dlse) text += " dlse";
    if (s.dbias_summed != std::array<bool, 3>{})
      text += " dbias_summed=" + broadcast_text(s.dbias_summed);
  }
  if (s.q_size != 1 || s.kv_size != 1) text += fmt::format(" sizes={},{}", s.q_size, s.kv_size);
  return text;
}

CaseSpec random_spec(Random& random) {
  CaseSpec s;
  s.dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
  s.batch = random.pick<int64_t>({1, 1, 2, 3});
  s.seqlen_q = random.chance(0.1) ? random.pick<int64_t>({0, 1}) : random.between(1, 150);
  s.seqlen_k = random.chance(0.1)   ? random.pick<int64_t>({0, 1})
               : random.chance(0.3) ? s.seqlen_q
                                    : random.between(1, 200);
  s.num_kv_heads = random.pick<int64_t>({1, 1, 2, 3});
  s.num_heads = s.num_kv_heads * random.pick<int64_t>({1, 1, 2, 4, 5});
  s.head_dim =
      random.chance(0.5) ? random.pick<int64_t>({16, 32, 64, 128}) : random.between(1, 130);
  s.head_dim_v = random.chance(0.6) ? s.head_dim : random.between(1, 130);
  if (random.chance(0.02)) {
    s.head_dim = random.between(257, kMaxHeadDim);
    s.head_dim_v =
        random.chance(0.6) ? std::min(s.head_dim, kMaxHeadDimV) : random.between(1, kMaxHeadDimV);
  }
  s.layout = random.pick(
      {Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::packed_qkv, Layout::odd_strides});
  s.flush = random.pick({GuardedBuffer::Flush::end, GuardedBuffer::Flush::start});
  s.causal = random.pick({Causal::none, Causal::none, Causal::bottom_right, Causal::top_left});
  if (random.chance(0.25)) s.window_left = random.between(0, 60);
  if (random.chance(0.15)) s.window_right = random.between(0, 60);
  if (random.chance(0.15)) s.softcap = random.pick({5.0F, 30.0F});
  if (random.chance(0.2)) s.scale = random.pick({0.05F, 0.3F, 1.0F, -0.2F});
  s.bias = random.chance(0.4);
  s.bias_dtype = random.pick({DType::fp32, DType::fp16, DType::bf16});
  s.bias_broadcast = {random.chance(0.5), random.chance(0.4), random.chance(0.2)};
  s.keep = random.chance(0.3);
  s.keep_broadcast = {random.chance(0.3), random.chance(0.6), random.chance(0.5)};
  s.nan_in_masked = random.chance(0.5);
  s.alibi = random.chance(0.2) ? static_cast<int>(random.between(1, 2)) : 0;
  s.sinks = random.chance(0.2);
  s.lse = random.chance(0.7);
  if (random.chance(0.06)) {
    // Keys enough to be split among workgroups or threads, and windows that begin anywhere in a
    // split.
    s.seqlen_q = random.between(1, 3);
    s.seqlen_k = random.between(600, 2600);
    if (random.chance(0.7)) s.window_left = random.between(0, s.seqlen_k);
    s.lse = true;
  }
  s.huge_bias = s.bias && random.chance(0.2);
  return s;
}

CaseSpec random_backward_spec(Random& random) {
  CaseSpec s = random_spec(random);
  s.backward = true;
  s.lse = true;
  s.dlse = random.chance(0.3);
  if (random.chance(0.3)) s.dropout = random.pick({0.1F, 0.5F, 0.9F});
  for (bool& wanted : s.gradients) wanted = random.chance(0.8);
  for (bool& summed : s.dbias_summed) summed = random.chance(0.2);
  return s;
}

Case::Case(const CaseSpec& given, Random& random) : spec(given) {
  const CaseSpec& s = spec;
  options.deterministic = false;  // kernels with atomics, too
  options.precision = spec.precision;
  options.causal = s.causal;
  options.window_left = s.window_left;
  options.window_right = s.window_right;
  options.softcap = s.softcap;
  if (s.scale != 0) options.softmax_scale = s.scale;

  draw_sequences(random);
  if (s.layout == Layout::packed_qkv && !variable_lengths(s) && s.seqlen_q == s.seqlen_k &&
      s.head_dim == s.head_dim_v) {
    packed_inputs();
  } else {
    tensors.q = query_rows(s.head_dim);
    tensors.k = key_rows(s.head_dim);
    if (s.values_in_keys) {
      tensors.v = tensors.k;
      tensors.v.shape[3] = s.head_dim_v;
    } else {
      tensors.v = key_rows(s.head_dim_v);
    }
  }
  fill_queries(tensors.q, s.q_size, random);
  fill_keys(tensors.k, s.kv_size, random);
  fill_keys(tensors.v, s.kv_size, random);
  tensors.out = query_rows(s.head_dim_v);
  output(&AttentionTensors::out);

  if (s.bias) {
    tensors.bias = broadcastable(s.bias_dtype, s.bias_broadcast);
    fill_normal(tensors.bias, 1, random);
    if (s.huge_bias) fill_huge_bias(tensors.bias);
  }
  if (s.keep) {
    tensors.keep_mask = broadcastable(DType::boolean, s.keep_broadcast);
    fill_keep(random);
  }
  if (s.alibi != 0) {
    const int64_t batches = s.alibi == 2 ? s.batch : 1;
    tensors.alibi_slopes = {allocate(static_cast<std::size_t>(batches * s.num_heads) * 4),
                            DType::fp32,
                            {batches, 1, 1, s.num_heads},
                            {batches == 1 ? 0 : s.num_heads, 0, 0, 1}};
    for_each(tensors.alibi_slopes, [&](const auto& at) {
      set(tensors.alibi_slopes, at, 0.01F * static_cast<float>(1 + at[3] + 2 * at[0]));
    });
  }
  if (s.sinks) {
    tensors.sinks = {allocate(static_cast<std::size_t>(s.num_heads) * 4),
                     DType::fp32,
                     {1, 1, 1, s.num_heads},
                     {0, 0, 0, 1}};
    fill_normal(tensors.sinks, 1, random);
  }
  if (s.lse || s.backward) {
    tensors.lse = row_statistics();
    output(&AttentionTensors::lse);
  }
  if (s.dropout > 0) {
    options.dropout = s.dropout;
    tensors.dropout_seed = static_cast<uint64_t>(random.between(0, INT64_MAX));
    tensors.dropout_offset = static_cast<uint64_t>(random.between(0, INT64_MAX));
  }
  if (s.nan_in_masked) hide_nan_behind_mask();
  if (s.quantized) quantize_keys_and_values(random);
  if (s.backward) {
    forward_results();
    outputs_.clear();
    add_gradients(random);
  }
  poison_outputs();
}

Tensor Case::row_statistics() {
  const int64_t batch = spec.packed_q ? 1 : spec.batch,
                rows = spec.packed_q ? rows_q_ : spec.seqlen_q;
  return {allocate(static_cast<std::size_t>(batch * spec.num_heads * rows) * 4),
          DType::fp32,
          {batch, spec.num_heads, rows, 1},
          {spec.num_heads * rows, rows, 1, 1}};
}

void Case::forward_results() {
  AttentionOptions exact = options;
  exact.kernel = "cpu.reference.double";
  if (const Status status = attention(tensors, exact, "cpu"); !status.ok()) {
    throw std::runtime_error(to_string(spec) + ": " + status.message());
  }
}

void Case::add_gradients(Random& random) {
  using T = AttentionTensors;
  const CaseSpec& s = spec;
  tensors.dout = query_rows(s.head_dim_v);
  fill_queries(tensors.dout, 1, random);
  if (s.dlse) {
    tensors.dlse = row_statistics();
    fill_normal(tensors.dlse, 1, random);
  }
  if (s.gradients[0]) {
    tensors.dq = query_rows(s.head_dim);
    output(&T::dq);
  }
  if (s.gradients[1]) {
    tensors.dk = key_rows(s.head_dim);
    output(&T::dk);
  }
  if (s.gradients[2]) {
    tensors.dv = key_rows(s.head_dim_v);
    output(&T::dv);
  }
  if (s.gradients[3] && s.bias && !variable_lengths(s)) {
    std::array<bool, 3> summed{};
    for (std::size_t d = 0; d < 3; ++d) summed[d] = s.bias_broadcast[d] || s.dbias_summed[d];
    tensors.dbias = broadcastable(s.bias_dtype, summed);
    output(&T::dbias);
  }
  if (s.gradients[4] && s.sinks) {
    tensors.dsinks = {allocate(static_cast<std::size_t>(s.num_heads) * 4),
                      DType::fp32,
                      {1, 1, 1, s.num_heads},
                      {0, 0, 0, 1}};
    output(&T::dsinks);
  }
  // One at least.
  if (outputs_.empty()) {
    tensors.dv = key_rows(s.head_dim_v);
    output(&T::dv);
  }
}

Problem Case::problem() const {
  Result<Problem> problem =
      spec.backward ? make_backward_problem(tensors, options) : make_problem(tensors, options);
  if (!problem.ok()) throw std::runtime_error(to_string(spec) + ": " + problem.status().message());
  return problem.value();
}

std::byte* Case::allocate(std::size_t bytes) {
  buffers_.emplace_back(bytes, spec.flush);
  if (bytes > 0) std::memset(buffers_.back().data(), kPoison, bytes);
  return buffers_.back().data();
}

Tensor Case::strided(DType dtype, int64_t batch, int64_t seqlen, int64_t heads, int64_t dim) {
  Tensor t{nullptr, dtype, {batch, seqlen, heads, dim}, {}};
  switch (spec.layout) {
    case Layout::bhsd:
      t.strides = {heads * seqlen * dim, dim, seqlen * dim, 1};
      break;
    case Layout::sbhd:
      t.strides = {heads * dim, batch * heads * dim, dim, 1};
      break;
    case Layout::odd_strides: {
      const int64_t head = dim + 3;
      const int64_t row = heads * head + 5;
      t.strides = {seqlen * row + 7, row, head, 1};
      break;
    }
    default:
      t.strides = {seqlen * heads * dim, heads * dim, dim, 1};
  }
  // Exactly up to the last element: the gap that would follow it belongs to the guard page.
  int64_t elements = 1;
  for (std::size_t n = 0; n < 4; ++n)
    elements =
        t.shape[n] == 0 ? 0 : elements + (elements > 0 ? (t.shape[n] - 1) * t.strides[n] : 0);
  for (const int64_t size : t.shape) elements = size == 0 ? 0 : elements;
  t.data = allocate(static_cast<std::size_t>(elements * size_of(dtype)));
  return t;
}

void Case::packed_inputs() {
  const int64_t heads = spec.num_heads + 2 * spec.num_kv_heads;
  const int64_t dim = spec.head_dim;
  const auto bytes = static_cast<std::size_t>(size_of(spec.dtype));
  const std::array<int64_t, 4> strides{spec.seqlen_q * heads * dim, heads * dim, dim, 1};
  std::byte* data =
      allocate(static_cast<std::size_t>(spec.batch * spec.seqlen_q * heads * dim) * bytes);
  const auto part = [&](int64_t first_head, int64_t count) {
    std::byte* start =
        data +
        (spec.batch * spec.seqlen_q == 0 ? 0 : static_cast<std::size_t>(first_head * dim) * bytes);
    return Tensor{start, spec.dtype, {spec.batch, spec.seqlen_q, count, dim}, strides};
  };
  tensors.q = part(0, spec.num_heads);
  tensors.k = part(spec.num_heads, spec.num_kv_heads);
  tensors.v = part(spec.num_heads + spec.num_kv_heads, spec.num_kv_heads);
}

Tensor Case::broadcastable(DType dtype, const std::array<bool, 3>& broadcast) {
  const int64_t b = broadcast[0] ? 1 : spec.batch;
  const int64_t h = broadcast[1] ? 1 : spec.num_heads;
  const int64_t q = broadcast[2] ? 1 : spec.seqlen_q;
  return Tensor::bhqk(
      allocate(static_cast<std::size_t>(b * h * q * spec.seqlen_k * size_of(dtype))), dtype, b, h,
      q, spec.seqlen_k);
}

void Case::fill_normal(const Tensor& tensor, float size, Random& random) {
  // MI200 takes subnormal fp16 numbers for 0. Lane maps' tests have some, on every chip.
  const float smallest = tensor.dtype == DType::fp16 ? 0x1p-14F : 0.0F;
  for_each(tensor, [&](const auto& at) {
    const float x = size * random.normal();
    set(tensor, at, std::fabs(x) < smallest ? std::copysign(smallest, x) : x);
  });
}

void Case::fill_keep(Random& random) {
  const Tensor& keep = tensors.keep_mask;
  for (int64_t b = 0; b < keep.shape[0]; ++b) {
    for (int64_t h = 0; h < keep.shape[1]; ++h) {
      if (spec.keep_pattern != KeepPattern::rows) {
        fill_keep_pattern({b, h, 0, 0}, random);
        continue;
      }
      for (int64_t i = 0; i < keep.shape[2]; ++i) {
        const int64_t size = spec.keep_documents,
                      token = std::max<int64_t>(0, i + spec.seqlen_k - spec.seqlen_q);
        const bool scattered = random.chance(0.5);
        const int64_t kept = random.between(0, spec.seqlen_k);
        for (int64_t j = 0; j < spec.seqlen_k; ++j) {
          // Any byte but 0 is true.
          const bool keeps = size > 0    ? j / size == token / size
                             : scattered ? random.chance(spec.keep_share)
                                         : j < kept;
          const int value = keeps ? random.pick({1, 1, 255}) : 0;
          static_cast<uint8_t*>(keep.data)[offset(keep, {b, h, i, j})] =
              static_cast<uint8_t>(value);
        }
      }
    }
  }
}

void Case::fill_keep_pattern(const std::array<int64_t, 4>& head, Random& random) {
  const Tensor& keep = tensors.keep_mask;
  constexpr int64_t kBlock = 64;
  const int64_t padding = random.between(0, spec.seqlen_k);
  for (int64_t row = 0; row < keep.shape[2]; row += kBlock) {
    for (int64_t key = 0; key < spec.seqlen_k; key += kBlock) {
      const int64_t row_end = std::min(row + kBlock, keep.shape[2]),
                    key_end = std::min(key + kBlock, spec.seqlen_k);
      const int share = random.pick({0, 1, 2});  // of a block, in halves
      const int64_t one_row = random.between(row, row_end - 1),
                    one_key = random.between(key, key_end - 1);
      for (int64_t i = row; i < row_end; ++i) {
        for (int64_t j = key; j < key_end; ++j) {
          bool keeps = false;
          switch (spec.keep_pattern) {
            case KeepPattern::triangle:
              keeps = j <= i + spec.seqlen_k - spec.seqlen_q;
              break;
            case KeepPattern::blocks:
              keeps = share == 2 || (share == 1 && random.chance(0.5));
              break;
            case KeepPattern::left_padding:
              keeps = j >= padding;
              break;
            case KeepPattern::right_padding:
              keeps = j < padding;
              break;
            case KeepPattern::one_key:
              keeps = i == one_row && j == one_key;
              break;
            case KeepPattern::rows:
            case KeepPattern::nothing:
              break;
          }
          static_cast<uint8_t*>(keep.data)[offset(keep, {head[0], head[1], i, j})] =
              static_cast<uint8_t>(keeps ? random.pick({1, 1, 255}) : 0);
        }
      }
    }
  }
}

void Case::hide_nan_behind_mask() {
  for (int64_t b = 0; b < spec.batch; ++b) {
    const Sequence& sequence = sequences_[static_cast<std::size_t>(b)];
    const int64_t diagonal = spec.causal == Causal::top_left ? 0 : sequence.k_len - sequence.q_len;
    for (int64_t kv_head = 0; kv_head < spec.num_kv_heads; ++kv_head) {
      for (int64_t j = 0; j < sequence.k_len; ++j) {
        bool attended = false;
        for (int64_t h = 0; h < spec.num_heads && !attended; ++h) {
          if (h / (spec.num_heads / spec.num_kv_heads) != kv_head) continue;
          for (int64_t i = 0; i < sequence.q_len && !attended; ++i) {
            attended = !(spec.causal != Causal::none && j > i + diagonal) &&
                       !(spec.window_left >= 0 && j < i + diagonal - spec.window_left) &&
                       !(spec.window_right >= 0 && j > i + diagonal + spec.window_right) &&
                       !(spec.keep &&
                         static_cast<uint8_t*>(
                             tensors.keep_mask.data)[offset(tensors.keep_mask, {b, h, i, j})] == 0);
          }
        }
        if (attended) continue;
        for (int64_t d = 0; d < spec.head_dim; ++d) set(tensors.k, key_at(b, j, kv_head, d), NAN);
        for (int64_t d = 0; d < spec.head_dim_v; ++d)
          set(tensors.v, key_at(b, j, kv_head, d), d % 2 == 0 ? NAN : HUGE_VALF);
      }
    }
  }
}

void Case::mask_key(int64_t key) {
  for (int64_t b = 0; b < spec.batch; ++b) {
    for (int64_t h = 0; h < spec.num_heads; ++h) {
      for (int64_t i = 0; i < spec.seqlen_q; ++i) {
        static_cast<uint8_t*>(tensors.keep_mask.data)[offset(tensors.keep_mask, {b, h, i, key})] =
            0;
      }
    }
  }
}

void Case::poison_outputs() {
  for (const Output& one : outputs_) {
    const GuardedBuffer& buffer = buffers_[one.buffer];
    if (buffer.size() > 0) std::memset(buffer.data(), kPoison, buffer.size());
  }
}

std::string Case::stray_writes() const {
  for (const Output& one : outputs_) {
    const Tensor& tensor = tensors.*one.tensor;
    const GuardedBuffer& buffer = buffers_[one.buffer];
    const auto bytes = static_cast<std::size_t>(size_of(tensor.dtype));
    std::vector<bool> ours(buffer.size() / bytes);
    for_each(tensor, [&](const auto& at) {
      if (belongs_to_sequence(one.tensor, at))
        ours[static_cast<std::size_t>(offset(tensor, at))] = true;
    });
    for (std::size_t element = 0; element < ours.size(); ++element) {
      if (ours[element]) continue;
      for (std::size_t byte = 0; byte < bytes; ++byte) {
        if (static_cast<unsigned char>(buffer.data()[element * bytes + byte]) != kPoison) {
          return fmt::format(
              "element {} of an output's buffer, {}, lies in a gap, or in no sequence, and was "
              "written",
              element, fulmen::to_string(tensor));
        }
      }
    }
  }
  return "";
}

std::vector<float> Case::out_values() const { return values(&AttentionTensors::out); }

std::vector<float> Case::lse_values() const {
  return spec.lse ? values(&AttentionTensors::lse) : std::vector<float>();
}

std::vector<float> Case::output_values() const {
  std::vector<float> all;
  for (const Output& one : outputs_) {
    const std::vector<float> some = values(one.tensor);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::vector<float> Case::values(Tensor AttentionTensors::* member) const {
  const Tensor& tensor = tensors.*member;
  std::vector<float> values;
  for_each(tensor, [&](const auto& at) {
    if (belongs_to_sequence(member, at)) values.push_back(get(tensor, at));
  });
  return values;
}

float Case::get(const Tensor& tensor, const std::array<int64_t, 4>& index) {
  return reference::load_float(tensor.data, tensor.dtype, offset(tensor, index));
}

void Case::set(const Tensor& tensor, const std::array<int64_t, 4>& index, float value) {
  reference::store_float(tensor.data, tensor.dtype, offset(tensor, index), value);
}

void Case::make_inputs_read_only() {
  for (std::size_t n = 0; n < buffers_.size(); ++n) {
    const bool written = std::any_of(outputs_.begin(), outputs_.end(),
                                     [n](const Output& one) { return one.buffer == n; });
    if (!written) buffers_[n].make_read_only();
  }
}

}  // namespace fulmen::testing

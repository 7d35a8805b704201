#include "gpu/small_problem.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>

#include "fulmen/reference.h"
#include "reference/oracle/gradients.h"
#include "runtime/float_formats.h"
#include "runtime/kv_formats.h"
#include "runtime/tensor_table.h"

namespace fulmen::gpu {
namespace {

constexpr int64_t kPiece = 8;  // elements: kernels move so many at once where strides are multiples
// Sequences of different lengths: each has so many queries and keys fewer than the one before, and
// begins so many rows later.
constexpr int64_t kFewerQueries = 7, kFewerKeys = 5, kFirstRow = 3;

constexpr float kMostValue = 2, kMostSlope = 0.125F, kSmallScale = 1.0F / 32;

int64_t queries_of(const Problem& p, int64_t b) {
  return std::max<int64_t>(0, p.seqlen_q - kFewerQueries * b);
}
int64_t keys_of(const Problem& p, int64_t b) {
  return std::max<int64_t>(0, p.seqlen_k - kFewerKeys * b);
}

int64_t sum(const Problem& p, int64_t (*length)(const Problem&, int64_t)) {
  int64_t rows = 0;
  for (int64_t b = 0; b < p.batch; ++b) rows += length(p, b);
  return rows;
}

// Rows one after the other, with gaps that give each stride the remainder that it had. shares: dims
// of stride 0 keep it, as all their rows are one. An output has rows of its own: its stride is 0
// where the plan was made of one sequence, and the small problem has more.
void pack(TensorSpec& spec, const Problem::Shape& shape, bool shares) {
  int64_t next = spec.strides[3] == 0 ? 1 : shape[3];
  for (const int d : {2, 1, 0}) {
    if (spec.strides[d] == 0 && (shares || shape[d] == 1)) continue;
    const int64_t remainder = spec.strides[d] % kPiece;
    spec.strides[d] = (next + kPiece - 1) / kPiece * kPiece + remainder;
    next = spec.strides[d] * shape[d];
  }
}
// Rows of blocks are counted in bytes.
Problem::Shape elements_of(const TensorSpec& spec, Problem::Shape shape) {
  shape[3] = row_elements(spec.dtype, shape[3]);
  return shape;
}

void fill_table(const Problem& p, std::string_view name, int64_t row_stride, int* to) {
  const bool packed = name.starts_with("cu_seqlens");
  const auto length = name == "cu_seqlens_q" ? queries_of : keys_of;
  if (packed) *to++ = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    if (packed) {
      *to = to[-1] + static_cast<int>(length(p, b));
      ++to;
    } else if (name == "seqlens_k") {
      *to++ = static_cast<int>(keys_of(p, b));
    } else if (name == "leftpad_k") {
      *to++ = static_cast<int>(std::min(kFirstRow * b, keys_of(p, b)));
    } else {  // block_table: pages in descending order
      for (int64_t n = 0; n < p.max_pages; ++n)
        to[b * row_stride + n] = static_cast<int>(p.num_pages - 1 - (b * p.max_pages + n));
    }
  }
}

// Numbers from -most to most.
void fill_random(std::mt19937& random, const TensorSpec& spec, float most,
                 std::vector<std::byte>& memory) {
  if (spec.dtype == DType::boolean) {
    for (std::byte& keep : memory) keep = static_cast<std::byte>(random() % 8 != 0);
    return;
  }
  // By hand: distributions of the standard library differ from one to the next.
  const auto count = static_cast<int64_t>(memory.size()) / size_of(spec.dtype);
  for (int64_t n = 0; n < count; ++n) {
    const float value = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31F * most;
    reference::store_float(memory.data(), spec.dtype, n, value);
  }
}

// Numbers of k or v from -most to most, as their format has them.
void fill_stored(std::mt19937& random, const TensorSpec& spec, const Problem::Shape& shape,
                 float most, std::vector<std::byte>& memory) {
  std::vector<float> row(static_cast<std::size_t>(shape[3]));
  const int64_t block = block_bytes(spec.dtype);
  for (int64_t a = 0; a < shape[0]; ++a) {
    for (int64_t b = 0; b < shape[1]; ++b) {
      for (int64_t c = 0; c < shape[2]; ++c) {
        for (float& x : row)
          x = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31F * most;
        std::byte* to =
            memory.data() + a * spec.strides[0] + b * spec.strides[1] + c * spec.strides[2];
        if (block == 0) {
          reference::encode_kv(row.data(), spec.dtype, kSmallScale, shape[3], to);
          continue;
        }
        for (int64_t d = 0; d < shape[3]; d += kBlockNumbers, to += block)
          reference::encode_block(spec.dtype, row.data() + d, to);
      }
    }
  }
}

}  // namespace

Problem small_problem(const Problem& problem, const SmallSizes& sizes) {
  Problem p = problem;
  const int64_t group = std::min(p.group_size(), sizes.group);
  p.batch = std::min(p.batch, sizes.batch);
  p.num_kv_heads = std::min(p.num_kv_heads, sizes.kv_heads);
  p.num_heads = p.num_kv_heads * group;
  // Whether lengths are multiples of 8 decides how a bias is loaded.
  p.seqlen_q = std::min(p.seqlen_q, sizes.seqlen_q + p.seqlen_q % kPiece);
  p.seqlen_k = std::min(p.seqlen_k, sizes.seqlen_k + p.seqlen_k % kPiece);
  p.padded_k = p.seqlen_k;
  p.total_q = p.packed_q() ? sum(p, queries_of) : 0;
  p.total_k = p.packed_k() ? sum(p, keys_of) : 0;
  if (p.paged()) {
    p.max_pages = (p.seqlen_k + p.page_size - 1) / p.page_size;
    // Without lengths a sequence has all rows of its pages.
    if (!p.seqlens_k.present) p.seqlen_k = p.padded_k = p.max_pages * p.page_size;
    p.num_pages = p.batch * p.max_pages;
  }
  if (!p.variable_lengths() && !p.top_left) p.diagonal = p.seqlen_k - p.seqlen_q;
  // The usual size of scores: only whether the scale is positive changes code.
  const float usual = 1 / std::sqrt(static_cast<float>(std::max<int64_t>(1, p.head_dim)));
  p.softmax_scale = p.softmax_scale > 0 ? usual : p.softmax_scale < 0 ? -usual : 0;
  // Windows that cut some keys off, and begin inside a tile of a split that is not the last,
  // whatever those of the given problem: kernels have them as numbers, so that one verdict is for
  // all.
  if (p.window_left >= 0) p.window_left = p.seqlen_k / 3 | 1;
  if (p.window_right > 0) p.window_right = p.seqlen_k / 3;
  // A sum of probabilities shows a key too many better than an output does.
  const auto shapes = shapes_of(p);
  // Packed rows are one batch.
  if (p.pass == Pass::forward && !p.lse.present)
    p.lse = {DType::fp32, true, {p.packed_q() ? 0 : 1, 1, 1, 1}};
  for (int i = 0; i < kTensorFields; ++i) {
    const TensorField& field = kTensorTable[i];
    TensorSpec& spec = p.*field.spec;
    const bool own_rows =
        field.written[static_cast<std::size_t>(p.pass)] && field.broadcast == Broadcast::none;
    if (spec.present) pack(spec, elements_of(spec, shapes[i]), !own_rows);
  }
  if (p.values_in_keys) p.v.strides = p.k.strides;
  return p;
}

Status SmallTensors::make(const Problem& p, const AttentionOptions& options) {
  const auto shapes = shapes_of(p);
  const auto pass = static_cast<std::size_t>(p.pass);
  std::mt19937 random(1);
  for (int i = 0; i < kTensorFields; ++i) {
    const TensorField& field = kTensorTable[i];
    const TensorSpec& spec = p.*field.spec;
    if (!spec.present || (!field.read[pass] && !field.written[pass])) continue;
    if (p.values_in_keys && field.spec == &Problem::v) {
      tensors.v = {tensors.k.data, spec.dtype, shapes[i], spec.strides};
      continue;
    }
    std::vector<std::byte>& memory =
        memory_.emplace_back(bytes_of(spec, shapes[i]), std::byte{0xFF});
    tensors->*field.tensor = {memory.data(), spec.dtype, shapes[i], spec.strides};
    if (field.written[pass]) continue;
    if (spec.dtype == DType::int32) {
      fill_table(p, field.name, spec.strides[2], reinterpret_cast<int*>(memory.data()));
    } else if (size_of(spec.dtype) == 1 && spec.dtype != DType::boolean) {
      fill_stored(random, spec, shapes[i], kMostValue, memory);
    } else {
      const bool scale = field.spec == &Problem::k_scale || field.spec == &Problem::v_scale;
      fill_random(random, spec,
                  field.spec == &Problem::alibi_slopes ? kMostSlope
                  : scale                              ? 2 * kSmallScale
                                                       : kMostValue,
                  memory);
    }
  }
  tensors.dropout_seed = 20240229;
  tensors.dropout_offset = 4;
  if (p.pass == Pass::forward) return {};
  std::vector<double> out(static_cast<std::size_t>(reference::elements(p.out_shape()))),
      lse(static_cast<std::size_t>(reference::elements(p.lse_shape())));
  if (Status status = attention_reference(p, tensors, out.data(), lse.data(), options);
      !status.ok())
    return status;
  reference::store_gradient(out.data(), p.out_shape(), p.out, tensors.out);
  reference::store_gradient(lse.data(), p.lse_shape(), p.lse, tensors.lse);
  return {};
}

}  // namespace fulmen::gpu

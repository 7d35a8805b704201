#include "cpu/kv_cache/append.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "reference/oracle/decode_rows.h"
#include "runtime/float_formats.h"
#include "runtime/kv_formats.h"
#include "runtime/threading.h"

namespace fulmen::cpu {
namespace {

constexpr int64_t kBytesPerThread = 64 << 10;  // less is copied sooner than a thread is woken

// All rows of one token: of new keys and values, or of queries.
class Append {
 public:
  Append(const KvCacheProblem& problem, const KvCacheTensors& tensors) noexcept
      : p_(problem), t_(tensors) {}

  void new_row(int64_t b, int64_t i) const noexcept {
    const int64_t position = used(b) + i;
    const int64_t page =
        p_.paged()
            ? static_cast<const int*>(
                  t_.block_table.data)[b * p_.block_table.strides[2] + position / p_.page_size]
            : b;
    const int64_t row = p_.paged() ? position % p_.page_size : position;
    for (int64_t h = 0; h < p_.num_kv_heads; ++h) {
      const Place place{b, page, row, h};
      const char* k = at(t_.k_new, p_.k_new, b, i, h);
      char* to = at(t_.k_cache, p_.k_cache, page, row, h);
      if (p_.k_dtype == p_.dtype) {
        rotate(k, position, to);
      } else {
        alignas(float) char rotated[kMaxHeadDim * sizeof(float)];
        rotate(k, position, rotated);
        quantize(rotated, p_.k_dtype, p_.head_dim, t_.k_scale, p_.k_scale, place, to);
      }
      if (p_.values_in_keys) continue;
      const char* v = at(t_.v_new, p_.v_new, b, i, h);
      to = at(t_.v_cache, p_.v_cache, page, row, h);
      if (p_.v_dtype == p_.dtype) {
        std::memcpy(to, v, bytes(p_.head_dim_v));
      } else {
        quantize(v, p_.v_dtype, p_.head_dim_v, t_.v_scale, p_.v_scale, place, to);
      }
    }
  }
  void query(int64_t b, int64_t i) const noexcept {
    const int64_t position = used(b) + (p_.queries_advance ? i : 0);
    for (int64_t h = 0; h < p_.num_heads; ++h)
      rotate(at(t_.q, p_.q, b, i, h), position, at(t_.q_out, p_.q_out, b, i, h));
  }
  int64_t used(int64_t b) const noexcept { return static_cast<const int*>(t_.seqlens_k.data)[b]; }

 private:
  // A head's row in the cache, by its sequence and by its page (its sequence without pages).
  struct Place {
    int64_t batch, page, row, head;
  };
  // One head's row of p_.dtype, to what the cache has, with the row's own scale written before.
  void quantize(const char* from, DType format, int64_t dim, const Tensor& scales,
                const TensorSpec& spec, const Place& place, char* to) const noexcept {
    float row[kMaxHeadDim];
    reference::decode_row(from, p_.dtype, 0, dim, row);
    if (const int64_t block = block_bytes(format); block > 0) {
      for (int64_t d = 0; d < dim; d += kBlockNumbers, to += block)
        reference::encode_block(format, row + d, to);
      return;
    }
    float scale = 1;
    if (spec.present) {
      const bool of_token = spec.strides[1] != 0;
      const int64_t index = reference::offset_of(spec, of_token ? place.page : place.batch,
                                                 of_token ? place.row : 0, place.head);
      if (of_token) {
        float most = 0;
        for (int64_t d = 0; d < dim; ++d) {
          const float size = std::fabs(row[d]);
          if (size > most || std::isnan(size)) most = size;  // a NaN stays
        }
        reference::store_float(scales.data, spec.dtype, index, reference::scale_of(format, most));
      }
      scale = reference::load_float(scales.data, spec.dtype, index);
    }
    reference::encode_kv(row, format, scale, dim, to);
  }

  std::size_t bytes(int64_t elements) const noexcept {
    return static_cast<std::size_t>(elements * size_of(p_.dtype));
  }
  static char* at(const Tensor& tensor, const TensorSpec& spec, int64_t a, int64_t b,
                  int64_t c) noexcept {
    return static_cast<char*>(tensor.data) +
           reference::offset_of(spec, a, b, c) * size_of(spec.dtype);
  }

  // One head's row, [head_dim]; from and to may be the same. In fp32, rounded once.
  void rotate(const char* from, int64_t position, char* to) const noexcept {
    const int64_t half = p_.rotary_dim / 2;
    if (half > 0) {
      float x[kMaxHeadDim] = {}, cos[kMaxHeadDim / 2] = {}, sin[kMaxHeadDim / 2] = {},
            rotated[kMaxHeadDim] = {};
      reference::decode_row(from, p_.dtype, 0, p_.rotary_dim, x);
      reference::decode_row(t_.rotary_cos.data, p_.rotary_cos.dtype,
                            position * p_.rotary_cos.strides[2], half, cos);
      reference::decode_row(t_.rotary_sin.data, p_.rotary_sin.dtype,
                            position * p_.rotary_sin.strides[2], half, sin);
      if (p_.rotary_interleaved) {
        for (int64_t i = 0; i < half; ++i) {
          rotated[2 * i] = x[2 * i] * cos[i] - x[2 * i + 1] * sin[i];
          rotated[2 * i + 1] = x[2 * i] * sin[i] + x[2 * i + 1] * cos[i];
        }
      } else {
        for (int64_t i = 0; i < half; ++i) {
          rotated[i] = x[i] * cos[i] - x[half + i] * sin[i];
          rotated[half + i] = x[i] * sin[i] + x[half + i] * cos[i];
        }
      }
      for (int64_t i = 0; i < p_.rotary_dim; ++i)
        reference::store_float(to, p_.dtype, i, rotated[i]);
    }
    const std::size_t done = bytes(p_.rotary_dim);
    if (from != to) std::memcpy(to + done, from + done, bytes(p_.head_dim) - done);
  }
  const KvCacheProblem& p_;
  const KvCacheTensors& t_;
};

}  // namespace

void append_kv(const KvCacheProblem& p, const KvCacheTensors& tensors,
               const KvCacheOptions& options) {
  AttentionOptions threads;
  threads.num_threads = options.num_threads;
  threads.parallel_for = options.parallel_for;
  ThreadSettings settings = thread_settings(threads);
  const int64_t row_elements = p.num_kv_heads * (p.head_dim + p.head_dim_v) * p.seqlen_new +
                               p.num_heads * p.head_dim * p.seqlen_q;
  const int64_t useful = p.batch * row_elements * size_of(p.dtype) / kBytesPerThread + 1;
  settings.num_threads = static_cast<int>(std::min<int64_t>(settings.num_threads, useful));

  const Append append(p, tensors);
  const int64_t tokens = p.seqlen_new + p.seqlen_q;
  parallel_tasks(settings, p.batch * tokens, [&](int64_t task, int) {
    const int64_t b = task / tokens, i = task % tokens;
    i < p.seqlen_new ? append.new_row(b, i) : append.query(b, i - p.seqlen_new);
  });
  for (int64_t b = 0; p.seqlens_k_out.present && b < p.batch; ++b) {
    static_cast<int*>(tensors.seqlens_k_out.data)[b] =
        static_cast<int>(append.used(b) + p.seqlen_new);
  }
}

}  // namespace fulmen::cpu

// Appending to a KV cache: a few lanes a head's row, of new keys, new values or queries; the first
// two go where their sequence ends, keys and queries are rotated on the way. Numbers in device
// memory are unchecked: rows that have no place in the cache are not written, and positions past
// the last one take its angles.
#include "core/block_code.h"
#include "core/stored_code.h"

namespace fulmen::kernels {

constexpr int kLanesOfRow = 32;
constexpr Int64 kRowsOfWorkgroup = kWorkgroup / kLanesOfRow;
static_assert(kWorkgroup % kLanesOfRow == 0, "append_kv: a workgroup has whole rows");
static_assert(kLanesOfRow == kLanesOfBlock, "append_kv: a lane has a number of a block");

// One row in flight; null: there is none.
struct AppendedRow {
  const Element* from;
  Element* to;
  int dims;
  int half;        // of the dims that are rotated
  Int64 position;  // by which
};

FULMEN_DEVICE Element* output_at(const View& view, Int64 batch, Int64 row, Int64 head) {
  return const_cast<Element*>(at<Element>(view, batch, row, head));
}

// Where a sequence's row is in the cache.
struct CachePlace {
  Int64 batch, row;  // or the page, and the row there; 0 where there is none
  bool exists;

  FULMEN_DEVICE static CachePlace of(const AppendArguments& a, Int64 b, Int64 row) {
    if (row < 0 || row >= a.rows) return {0, 0, false};
    if (a.block_table == nullptr) return {b, row, true};
    const Int64 page = global_load(a.block_table + b * a.table_stride + row / a.page_size);
    if (page < 0 || page >= a.num_pages) return {0, 0, false};
    return {page, row % a.page_size, true};
  }
};
// A row of the cache; null where there is none.
FULMEN_DEVICE Element* cache_row(const AppendArguments& a, const View& view, Int64 b, Int64 row,
                                 Int64 head) {
  const CachePlace place = CachePlace::of(a, b, row);
  return place.exists ? output_at(view, place.batch, place.row, head) : nullptr;
}

// Rows of a sequence count keys and values of new token 0, of token 1, ..., then queries.
FULMEN_DEVICE AppendedRow appended_row(const AppendArguments& a, Int64 b, Int64 n) {
  const Int64 used = global_load(a.seqlens_k + b);
  const Int64 new_heads = 2 * static_cast<Int64>(a.num_kv_heads),
              new_rows = a.seqlen_new * new_heads;
  if (n >= new_rows) {
    const Int64 i = (n - new_rows) / a.num_heads, head = (n - new_rows) % a.num_heads;
    return {at<Element>(a.q, b, i, head), output_at(a.q_out, b, i, head), a.head_dim, a.half,
            used + (a.queries_advance != 0 ? i : 0)};
  }
  const Int64 i = n / new_heads, kv_head = n % new_heads / 2;
  if (n % 2 == 0) {
    return {at<Element>(a.k_new, b, i, kv_head), cache_row(a, a.k_cache, b, used + i, kv_head),
            a.head_dim, a.half, used + i};
  }
  return {at<Element>(a.v_new, b, i, kv_head), cache_row(a, a.v_cache, b, used + i, kv_head),
          a.head_dim_v, 0, 0};
}

FULMEN_DEVICE float angle(const AppendArguments& a, const void* table, Int64 index) {
  if (a.rotary_fp32 != 0) return global_load(static_cast<const float*>(table) + index);
  return to_float(global_load(static_cast<const Element*>(table) + index));
}

// Pair i of a row's rotated elements: where they are, and what they become.
struct RotatedPair {
  int first, second;
  float x, y;

  FULMEN_DEVICE static RotatedPair of(const AppendArguments& a, const AppendedRow& row,
                                      Int64 position, int i) {
    const int first = a.interleaved != 0 ? 2 * i : i,
              second = a.interleaved != 0 ? 2 * i + 1 : i + row.half;
    const float cosine = angle(a, a.rotary_cos, position * a.cos_row + i),
                sine = angle(a, a.rotary_sin, position * a.sin_row + i);
    const float x = to_float(global_load(row.from + first)),
                y = to_float(global_load(row.from + second));
    return {first, second, x * cosine - y * sine, x * sine + y * cosine};
  }
};

// By 16 bytes where both places allow it.
FULMEN_DEVICE void copy_elements(const Element* from, Element* to, int count, int lane) {
  constexpr int kPiece = 16 / sizeof(Element);
  int done = 0;
  if ((reinterpret_cast<Size>(from) | reinterpret_cast<Size>(to)) % 16 == 0) {
    done = count / kPiece * kPiece;
    for (int d = kPiece * lane; d < done; d += kPiece * kLanesOfRow) {
      global_store(reinterpret_cast<Words<4>*>(to + d),
                   global_load(reinterpret_cast<const Words<4>*>(from + d)));
    }
  }
  for (int d = done + lane; d < count; d += kLanesOfRow)
    global_store(to + d, global_load(from + d));
}

// One row that is quantized: what lanes of it compute.
struct QuantizedRow {
  const AppendArguments& a;
  AppendedRow row;
  Int64 position;

  // The element that a cache of q's dtype would have.
  FULMEN_DEVICE float number(int d) const {
    if (d >= 2 * row.half) return to_float(global_load(row.from + d));
    const int i = a.interleaved != 0 ? d / 2 : d < row.half ? d : d - row.half;
    const RotatedPair pair = RotatedPair::of(a, row, position, i);
    return to_float(from_float<Element>(d == pair.first ? pair.x : pair.y));
  }
  // The largest |number|, an infinity for a NaN; all lanes of the row have it.
  FULMEN_DEVICE float largest(int lane) const {
    float most = 0;
    for (int d = lane; d < row.dims; d += kLanesOfRow) {
      const float size = absolute(number(d));
      most = size == size ? larger(most, size) : kInfinity;
    }
#pragma unroll
    for (int mask = 1; mask < kLanesOfRow; mask *= 2) most = larger(most, shuffle_xor(most, mask));
    return most;
  }
  template <int kFormat>
  FULMEN_DEVICE void store(int lane, unsigned char* to, float scale) const {
    for (int d = lane; d < row.dims; d += kLanesOfRow) {
      const float place = scale == 0 ? 0.0F : number(d) / scale;
      global_store(to + d, static_cast<unsigned char>(code_of<kFormat>(place)));
    }
  }
  template <int kFormat>
  FULMEN_DEVICE void store_blocks(int lane, unsigned char* to, bool stored) const {
    for (int d = 0; d < row.dims; d += kBlockNumbers, to += bytes_of_block(kFormat))
      store_block<kFormat>(to, number(d + lane), lane, stored);
  }
};

// The scale of a row's numbers, which is computed and stored where each token has its own.
template <bool kValues>
FULMEN_DEVICE float scale_of_row(const AppendArguments& a, const QuantizedRow& row, Int64 b,
                                 const CachePlace& place, Int64 head, bool stored, int lane) {
  constexpr int kFormat = kValues ? kConfig.v_dtype : kConfig.kv_dtype;
  constexpr bool kOfToken = (kValues ? kConfig.value_scales : kConfig.key_scales) != 0;
  using Scale = Either<(kValues ? kConfig.value_scales : kConfig.key_scales) == 2, Half, float>;
  const View& scales = kValues ? a.v_scale : a.k_scale;
  const Int64 at =
      head * scales.head +
      (kOfToken ? place.batch * scales.batch + place.row * scales.row : b * scales.batch);
  if constexpr (kOfToken) {
    const float most = row.largest(lane);
    float scale = most < kInfinity ? most / largest_code(kFormat) : kNan;
    if constexpr (sizeof(Scale) == 2) scale = to_float(from_float<Half>(scale));
    if (stored && lane == 0) {
      auto* const to = static_cast<Scale*>(const_cast<void*>(scales.data)) + at;
      global_store(to, from_float<Scale>(scale));
    }
    return scale;
  }
  if (scales.data == nullptr) return 1;
  return (a.half_scales & (kValues ? 2 : 1)) != 0
             ? to_float(global_load(static_cast<const Half*>(scales.data) + at))
             : global_load(static_cast<const float*>(scales.data) + at);
}

// A row of k or v. All lanes come here together, those that have none (`there`) with another row,
// which they do not store.
template <bool kValues>
FULMEN_DEVICE void append_quantized(const AppendArguments& a, Int64 b, Int64 i, Int64 head,
                                    bool there, int lane) {
  constexpr int kFormat = kValues ? kConfig.v_dtype : kConfig.kv_dtype;
  const View& cache = kValues ? a.v_cache : a.k_cache;
  const Int64 used = global_load(a.seqlens_k + b);
  const CachePlace place = CachePlace::of(a, b, used + i);
  const bool stored = there && place.exists;
  const QuantizedRow row{a,
                         {at<Element>(kValues ? a.v_new : a.k_new, b, i, head), nullptr,
                          kValues ? a.head_dim_v : a.head_dim, kValues ? 0 : a.half, 0},
                         algorithm::Band::clamp(used + i, 0, a.positions - 1)};
  auto* const to = static_cast<unsigned char*>(const_cast<void*>(cache.data)) +
                   place.batch * cache.batch + place.row * cache.row + head * cache.head;
  if constexpr (is_block_format(kFormat)) {
    row.template store_blocks<kFormat>(lane, to, stored);
  } else {
    const float scale = scale_of_row<kValues>(a, row, b, place, head, stored, lane);
    if (stored) row.template store<kFormat>(lane, to, scale);
  }
}

// As append_kv(): rows of keys and values alone, a workgroup's first ones.
FULMEN_DEVICE void append_quantized_rows(const AppendArguments& a) {
  const Int64 rows = 2 * a.seqlen_new * a.num_kv_heads,
              id = workgroup_id() * kRowsOfWorkgroup + thread_id() / kLanesOfRow;
  const int lane = thread_id() % kLanesOfRow;
  // Rows of a wave take turns: first keys, then values.
  const bool there = id < rows * a.batch / 2;
  const Int64 pair = there ? id : 0, b = pair / (rows / 2), n = pair % (rows / 2),
              i = n / a.num_kv_heads, head = n % a.num_kv_heads;
  append_quantized<false>(a, b, i, head, there, lane);
  append_quantized<true>(a, b, i, head, there, lane);
}

FULMEN_DEVICE void append_kv(const AppendArguments& a) {
  const Int64 thread = workgroup_id() * kWorkgroup + thread_id();
  if (a.seqlens_k_out != nullptr && thread < a.batch) {
    global_store(a.seqlens_k_out + thread,
                 static_cast<int>(global_load(a.seqlens_k + thread) + a.seqlen_new));
  }
  const Int64 rows = 2 * a.seqlen_new * a.num_kv_heads + a.seqlen_q * a.num_heads;  // of a sequence
  const Int64 id = workgroup_id() * kRowsOfWorkgroup + thread_id() / kLanesOfRow;
  const int lane = thread_id() % kLanesOfRow;
  if constexpr (kQuantized) {
    if (a.seqlen_new > 0) append_quantized_rows(a);
  }
  if (id >= rows * a.batch) return;
  const Int64 n = id % rows;
  if (kQuantized && n < 2 * a.seqlen_new * a.num_kv_heads) return;  // append_quantized_rows()
  const AppendedRow row = appended_row(a, id / rows, n);
  if (row.to == nullptr) return;
  const Int64 position = algorithm::Band::clamp(row.position, 0, a.positions - 1);
  // In place, too: a lane has both elements of a pair.
  for (int i = lane; i < row.half; i += kLanesOfRow) {
    const RotatedPair pair = RotatedPair::of(a, row, position, i);
    global_store(row.to + pair.first, from_float<Element>(pair.x));
    global_store(row.to + pair.second, from_float<Element>(pair.y));
  }
  if (row.from == row.to) return;
  copy_elements(row.from + 2 * row.half, row.to + 2 * row.half, row.dims - 2 * row.half, lane);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::AppendArguments, fulmen::kernels::append_kv)

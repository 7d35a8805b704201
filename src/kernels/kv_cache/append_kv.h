// Appending to a KV cache: a few lanes a head's row, of new keys, new values or queries; the first
// two go where their sequence ends, keys and queries are rotated on the way. Numbers in device
// memory are unchecked: rows that have no place in the cache are not written, and positions past
// the last one take its angles.
#include "core/config.h"

namespace fulmen::kernels {

constexpr int kLanesOfRow = 32;
constexpr Int64 kRowsOfWorkgroup = kWorkgroup / kLanesOfRow;
static_assert(kWorkgroup % kLanesOfRow == 0, "append_kv: a workgroup has whole rows");

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

// A row of the cache, [batch or page, row, head]; null where there is none.
FULMEN_DEVICE Element* cache_row(const AppendArguments& a, const View& view, Int64 b, Int64 row,
                                 Int64 head) {
  if (row < 0 || row >= a.rows) return nullptr;
  if (a.block_table == nullptr) return output_at(view, b, row, head);
  const Int64 page = global_load(a.block_table + b * a.table_stride + row / a.page_size);
  if (page < 0 || page >= a.num_pages) return nullptr;
  return output_at(view, page, row % a.page_size, head);
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

FULMEN_DEVICE void append_kv(const AppendArguments& a) {
  const Int64 thread = workgroup_id() * kWorkgroup + thread_id();
  if (a.seqlens_k_out != nullptr && thread < a.batch) {
    global_store(a.seqlens_k_out + thread,
                 static_cast<int>(global_load(a.seqlens_k + thread) + a.seqlen_new));
  }
  const Int64 rows = 2 * a.seqlen_new * a.num_kv_heads + a.seqlen_q * a.num_heads;  // of a sequence
  const Int64 id = workgroup_id() * kRowsOfWorkgroup + thread_id() / kLanesOfRow;
  const int lane = thread_id() % kLanesOfRow;
  if (id >= rows * a.batch) return;
  const AppendedRow row = appended_row(a, id / rows, id % rows);
  if (row.to == nullptr) return;
  const Int64 position = algorithm::Band::clamp(row.position, 0, a.positions - 1);
  // In place, too: a lane has both elements of a pair.
  for (int i = lane; i < row.half; i += kLanesOfRow) {
    const int first = a.interleaved != 0 ? 2 * i : i,
              second = a.interleaved != 0 ? 2 * i + 1 : i + row.half;
    const float cosine = angle(a, a.rotary_cos, position * a.cos_row + i),
                sine = angle(a, a.rotary_sin, position * a.sin_row + i);
    const float x = to_float(global_load(row.from + first)),
                y = to_float(global_load(row.from + second));
    global_store(row.to + first, from_float<Element>(x * cosine - y * sine));
    global_store(row.to + second, from_float<Element>(x * sine + y * cosine));
  }
  if (row.from == row.to) return;
  copy_elements(row.from + 2 * row.half, row.to + 2 * row.half, row.dims - 2 * row.half, lane);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::AppendArguments, fulmen::kernels::append_kv)

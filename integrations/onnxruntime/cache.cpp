#include "cache.h"

#include <algorithm>
#include <cstring>

#include "sliding_window.h"

namespace fulmen_ort {
namespace {

const char* past_name(std::size_t i) { return i == 0 ? "past_key" : "past_value"; }
const char* present_name(std::size_t i) { return i == 0 ? "present_key" : "present_value"; }

// Rows first[b]..first[b] + count[b] - 1 of `from` become the first ones of `to`, which may be the
// same memory, as bytes.
void copy_bytes(const fulmen_tensor& from, const fulmen_tensor& to,
                const std::vector<int64_t>& first, const std::vector<int64_t>& count) {
  const int64_t batch = from.shape[0], heads = from.shape[2];
  const int64_t bytes = from.shape[3] * static_cast<int64_t>(bytes_of(from.dtype));
  in_parallel(batch * heads, batch * heads * from.shape[1] * bytes, [&](int64_t index) {
    const int64_t b = index / heads, h = index % heads;
    const auto at = static_cast<std::size_t>(b);
    if (count[at] > 0)
      std::memmove(row_of(to, b, 0, h), row_of(from, b, first[at], h),
                   static_cast<std::size_t>(count[at] * bytes));
  });
}

}  // namespace

Cache::Cache(Run& run, const Attributes& attributes, const std::vector<fulmen_tensor>& fresh,
             int64_t total, const std::vector<int64_t>& before, const std::vector<int64_t>& lengths)
    : run_(run),
      attributes_(attributes),
      lengths_(lengths),
      first_(before),
      before_(before),
      attended_(lengths) {
  const int64_t rows = run.input(0, "query").dims[1], added = fresh[0].shape[1];
  const int64_t dim = fresh[0].shape[3], kv_heads = fresh[0].shape[2], batch = fresh[0].shape[0];
  stored_ = attributes.cache_bits == 4 ? (dim + 1) / 2 : dim;
  for (std::size_t i = 0; i < 2; ++i) {
    Side& side = sides_[i];
    side.fresh = fresh[i];
    side.quantized = i == 0 ? attributes.k_quantized : attributes.v_quantized;
    side.past = run.input(3 + i, past_name(i));
    if (side.quantized != Quantized::no) {
      const Value scale = run.input(12 + i, i == 0 ? "k_scale" : "v_scale");
      const int64_t count = side.quantized == Quantized::per_channel ? kv_heads * dim : 1;
      if (scale.dtype != FULMEN_FP32 || scale.elements() != count)
        scale.refuse("float with " + std::to_string(count) + " numbers");
      const auto* numbers = static_cast<const float*>(scale.data);
      side.scales.assign(numbers, numbers + count);
    }
    if (!side.past.present()) continue;
    const std::vector<int64_t>& d = side.past.dims;
    if (d.size() != 4 || d[0] != batch || d[1] != kv_heads || d[3] != stored_)
      side.past.refuse("[" + std::to_string(batch) + ", " + std::to_string(kv_heads) + ", any, " +
                       std::to_string(stored_) + "]");
    if (i == 1 && sides_[0].past.present())
      side.past.expect(sides_[0].past.dims, "past_key's dims");
    past_rows_ = d[2];
  }
  if (sides_[0].past.present() != sides_[1].past.present())
    sides_[sides_[0].past.present() ? 1 : 0].past.refuse("past_key and past_value, or neither,");

  const bool sliding = attributes.sliding_window_cache;
  int64_t room = sliding ? past_rows_ : std::max(past_rows_, total);
  if (sliding && past_rows_ < attributes.window)
    sides_[0].past.refuse("with sliding_window_cache at least local_window_size = " +
                          std::to_string(attributes.window) + " rows");
  int64_t most = 0;  // rows before the new ones, of all sequences
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const int64_t from_past = before[b] + (added == 0 ? rows : 0);
    if (before[b] < 0 || lengths[b] < 1 ||
        (!sliding && (lengths[b] > room || before[b] + rows > room || from_past > past_rows_)))
      fail("seqlens_k is " + std::to_string(lengths[b] - 1) + " of sequence " + std::to_string(b) +
           ", with " + std::to_string(rows) + " rows of the query, total_sequence_length " +
           std::to_string(total) + " and a past of " + std::to_string(past_rows_) +
           " rows; the past's and the new rows' number, less 1, is accepted");
    if (sliding) {
      first_[b] = kept_rows(before[b], room, attributes.window);
      kept_.push_back(kept_rows(lengths[b], room, attributes.window));
      const bool moves = kept_[b] != first_[b] + lengths[b] - before[b];
      staged_ = staged_ || moves || first_[b] + rows > room;
      most = std::max(most, first_[b]);
    }
    // Without the causal mask nothing else keeps rows from the padding behind a sequence's end.
    if (attributes.causal) attended_[b] = first_[b] + rows;
  }
  for (std::size_t i = 0; i < 2; ++i) open(sides_[i], i, staged_ ? most + rows : room, staged_);
}

void Cache::open(Side& side, std::size_t which, int64_t room, bool staged) {
  const int64_t batch = side.fresh.shape[0], heads = side.fresh.shape[2];
  std::vector<int64_t> dims = {batch, heads, staged ? past_rows_ : room, stored_};
  side.present = run_.output(1 + which, present_name(which), dims);
  int32_t dtype = side.present.present() ? side.present.dtype : side.past.dtype;
  if (!side.present.present() && !side.past.present()) dtype = side.fresh.dtype;
  const bool fits = side.quantized == Quantized::no ? dtype == side.fresh.dtype
                    : attributes_.cache_bits == 4
                        ? dtype == FULMEN_UINT8
                        : dtype == FULMEN_INT8 || dtype == FULMEN_FP8_E4M3;
  if (!fits || (side.past.present() && side.past.dtype != dtype))
    fail(std::string(present_name(which)) + " has not the type of " + past_name(which) +
         " and of kv_cache_bit_width " + std::to_string(attributes_.cache_bits) +
         "; the query's for 0, uint8 for 4, int8 or float8e4m3fn for 8 is accepted");
  Value held = side.present;
  // Nothing is appended: the past is attended where it lies.
  if (!held.present() && side.fresh.shape[1] == 0) held = side.past;
  if (staged || !held.present()) {
    dims[2] = room;
    held = {present_name(which), nullptr, dtype, dims};
    held.data = run_.memory(held.elements() * static_cast<int64_t>(bytes_of(dtype)));
  }
  side.rows = as_heads(held, 0);
  if (past_rows_ == 0 || side.past.data == held.data) return;
  const std::vector<int64_t> all(first_.size(), past_rows_), none(first_.size(), 0);
  copy_bytes(as_heads(side.past, 0), side.rows, none, staged ? first_ : all);
}

void Cache::append(Preparation k, const std::vector<int64_t>& positions) {
  Preparation v;
  for (Preparation* p : {&k, &v}) {
    const Side& side = sides_[p == &k ? 0 : 1];
    if (side.quantized != Quantized::no) p->bits = attributes_.cache_bits;
    p->scales = side.scales;
    if (side.fresh.shape[1] > 0) write_rows(side.fresh, *p, positions, side.rows, first_);
  }
}

fulmen_tensor Cache::attended(Side& side) {
  if (attributes_.cache_bits != 4 || side.quantized == Quantized::no) return side.rows;
  const int64_t* s = side.rows.shape;
  const int64_t dim = side.fresh.shape[3], rows = s[1], heads = s[2];
  void* data = run_.memory(s[0] * heads * rows * dim);
  const fulmen_tensor bytes = fulmen_tensor_bhsd(data, FULMEN_INT8, s[0], rows, heads, dim);
  in_parallel(s[0] * heads, s[0] * heads * rows * dim, [&](int64_t index) {
    const int64_t b = index / heads, h = index % heads;
    const int64_t end = attended_[static_cast<std::size_t>(b)];
    for (int64_t i = 0; i < std::min(rows, end); ++i)
      int4_to_int8(reinterpret_cast<const uint8_t*>(row_of(side.rows, b, i, h)), dim,
                   reinterpret_cast<int8_t*>(row_of(bytes, b, i, h)));
  });
  return bytes;
}

void Cache::attend() {
  fulmen_tensors& t = run_.tensors;
  const int64_t heads = sides_[0].fresh.shape[2], dim = t.q.shape[3];
  run_.lengths.assign(attended_.begin(), attended_.end());
  t.seqlens_k =
      fulmen_tensor_1d(run_.lengths.data(), FULMEN_INT32, static_cast<int64_t>(attended_.size()));
  t.k = attended(sides_[0]);
  t.v = attended(sides_[1]);
  const std::vector<float>&k = sides_[0].scales, &v = sides_[1].scales;
  if (k.size() > 1)
    t.k_scale = fulmen_tensor_row_major(k.data(), FULMEN_FP32, 1, 1, heads, dim);
  else if (!k.empty())
    t.k_scale = fulmen_tensor_row_major(k.data(), FULMEN_FP32, 1, 1, 1, 1);
  // A value's channel is a channel of the outputs.
  if (v.size() > 1)
    run_.factor = v;
  else if (!v.empty())
    t.v_scale = fulmen_tensor_row_major(v.data(), FULMEN_FP32, 1, 1, 1, 1);
}

fulmen_tensor Cache::columns_of(const fulmen_tensor& bias) {
  const int64_t batch = static_cast<int64_t>(first_.size()), own = bias.shape[3];
  if (batch == 0) return bias;
  const int64_t most = std::max(own, *std::max_element(attended_.begin(), attended_.end()));
  const int64_t columns = std::min(most, run_.tensors.k.shape[1]);
  if (columns == own && first_ == before_) return bias;
  const int64_t heads = bias.shape[1], rows = bias.shape[2];
  const auto bytes = static_cast<int64_t>(bytes_of(bias.dtype));
  auto* data = static_cast<std::byte*>(run_.memory(batch * heads * rows * columns * bytes));
  std::memset(data, 0, static_cast<std::size_t>(batch * heads * rows * columns * bytes));
  for (int64_t index = 0; index < batch * heads * rows; ++index) {
    const int64_t b = index / (heads * rows);
    // The position of the first row that is attended.
    const int64_t skipped =
        before_[static_cast<std::size_t>(b)] - first_[static_cast<std::size_t>(b)];
    const int64_t from = bias.shape[0] == 1 ? index % (heads * rows) : index;
    if (own > skipped)
      std::memcpy(data + index * columns * bytes,
                  static_cast<const std::byte*>(bias.data) + (from * own + skipped) * bytes,
                  static_cast<std::size_t>(std::min(columns, own - skipped) * bytes));
  }
  return fulmen_tensor_bhqk(data, bias.dtype, batch, heads, rows, columns);
}

void Cache::write_back() {
  if (!staged_) return;
  std::vector<int64_t> first;
  for (std::size_t b = 0; b < kept_.size(); ++b)
    first.push_back(first_[b] + lengths_[b] - before_[b] - kept_[b]);
  for (const Side& side : sides_)
    if (side.present.present()) copy_bytes(side.rows, as_heads(side.present, 0), first, kept_);
}

}  // namespace fulmen_ort

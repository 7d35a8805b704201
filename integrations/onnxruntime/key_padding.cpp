#include "key_padding.h"

#include <algorithm>

namespace fulmen_ort {
namespace {

// The number of keys of each sequence where the mask says that alone: a row of [batch, keys] that
// begins with all that stay does. Else empty.
std::vector<int32_t> lengths_of(const Value& mask, int64_t batch, int64_t keys) {
  const auto* from = static_cast<const int32_t*>(mask.data);
  std::vector<int32_t> lengths;
  for (int64_t b = 0; b < batch; ++b) {
    int64_t length = 0;
    if (mask.dims.size() == 1) {
      length = std::clamp<int64_t>(from[b], 0, keys);
    } else {
      const int32_t* row = from + b * keys;
      while (length < keys && row[length] > 0) ++length;
      if (std::any_of(row + length, row + keys, [](int32_t n) { return n > 0; })) return {};
    }
    lengths.push_back(static_cast<int32_t>(length == 0 ? keys : length));
  }
  return lengths;
}

}  // namespace

void mask_keys(Run& run, const Value& mask, bool causal, int64_t before) {
  fulmen_tensors& t = run.tensors;
  const int64_t batch = t.q.shape[0], queries = t.q.shape[1], keys = t.k.shape[1];
  const std::vector<int64_t>& d = mask.dims;
  const std::vector<int64_t> accepted[] = {
      {batch}, {3 * batch + 2}, {batch, keys}, {batch, queries, keys}};
  if (mask.dtype != FULMEN_INT32 || std::find(accepted, accepted + 4, d) == accepted + 4)
    mask.refuse("int32 of [batch], [3 * batch + 2], [batch, keys] or [batch, queries, keys] = " +
                text_of(accepted[0]) + ", " + text_of(accepted[1]) + ", " + text_of(accepted[2]) +
                " or " + text_of(accepted[3]));
  if (!causal && d.size() < 3) {
    run.lengths = lengths_of(mask, batch, keys);
    if (!run.lengths.empty()) {
      t.seqlens_k = fulmen_tensor_1d(run.lengths.data(), FULMEN_INT32, batch);
      return;
    }
  }
  // A row for each query where they differ.
  const int64_t rows = causal || d.size() == 3 ? queries : 1;
  const auto* from = static_cast<const int32_t*>(mask.data);
  auto* keep = static_cast<bool*>(run.memory(batch * rows * keys));
  in_parallel(batch * rows, batch * rows * keys * 4, [&](int64_t index) {
    const int64_t b = index / rows, i = index % rows;
    const int64_t seen = causal && i + 1 < queries ? std::min(before + i + 1, keys) : keys;
    const auto stays = [&](int64_t j) {
      if (d.size() == 1) return j < from[b];
      return from[(d.size() == 2 ? b : index) * keys + j] > 0;
    };
    bool* row = keep + index * keys;
    for (int64_t j = 0; j < keys; ++j) row[j] = j < seen && stays(j);
    if (std::find(row, row + seen, true) == row + seen) std::fill_n(row, seen, true);
  });
  t.keep_mask = fulmen_tensor_bhqk(keep, FULMEN_BOOLEAN, batch, 1, rows, keys);
}

}  // namespace fulmen_ort

// Sequences of different lengths for a Case: lengths, tables, and where sequences lie. Rows of
// packed tensors, paddings and pages that belong to no sequence hold NaN.
#include <algorithm>
#include <numeric>

#include "support/attention_case.h"

namespace fulmen::testing {

void draw_variable_lengths(CaseSpec& s, Random& random) {
  s.batch = random.between(1, 5);
  s.packed_q = random.chance(0.6);
  if (s.backward) {
    s.packed_k = !s.packed_q || random.chance(0.8);
  } else {
    const auto kind = random.between(0, 3);
    s.packed_k = kind == 0;
    s.page_size = kind == 1 || kind == 2 ? random.pick<int64_t>({1, 3, 16, 32, 64, 100}) : 0;
    s.used_k = !s.packed_k && random.chance(0.8);
    s.leftpad_k = !s.packed_k && random.chance(0.3);
    if (!variable_lengths(s)) s.packed_q = true;
  }
  s.even_lengths = random.chance(0.1);
}

void Case::draw_sequences(Random& random) {
  const CaseSpec& s = spec;
  sequences_.assign(static_cast<std::size_t>(s.batch), {0, s.seqlen_q, 0, s.seqlen_k});
  if (!variable_lengths(s)) return;
  const auto length = [&](int64_t most) {
    if (s.even_lengths || random.chance(0.2)) return most;
    return random.chance(0.1) ? int64_t{0} : random.between(0, most);
  };
  rows_q_ = s.packed_q ? random.between(0, 3) : 0;
  rows_k_ = s.packed_k ? random.between(0, 3) : 0;
  std::vector<int> cu_q{static_cast<int>(rows_q_)}, cu_k{static_cast<int>(rows_k_)}, ends, begins;
  for (Sequence& one : sequences_) {
    if (s.packed_q) one = {rows_q_, length(s.seqlen_q), 0, s.seqlen_k};
    rows_q_ += one.q_len;
    cu_q.push_back(static_cast<int>(rows_q_));
    const int64_t end = s.packed_k || s.used_k ? length(s.seqlen_k) : s.seqlen_k;
    one.k_row = s.packed_k ? rows_k_ : s.leftpad_k ? random.between(0, end) : 0;
    one.k_len = s.packed_k ? end : end - one.k_row;
    rows_k_ += end;
    cu_k.push_back(static_cast<int>(rows_k_));
    ends.push_back(static_cast<int>(end));
    begins.push_back(static_cast<int>(one.k_row));
  }
  if (s.packed_q) {
    rows_q_ += random.between(0, 3);
    tensors.cu_seqlens_q = int32_tensor(cu_q, 1);
    options.max_seqlen_q = s.seqlen_q;
  }
  if (s.packed_k) {
    rows_k_ += random.between(0, 3);
    tensors.cu_seqlens_k = int32_tensor(cu_k, 1);
    options.max_seqlen_k = s.seqlen_k;
  }
  if (s.used_k) tensors.seqlens_k = int32_tensor(ends, 1);
  if (s.leftpad_k) tensors.leftpad_k = int32_tensor(begins, 1);
  if (s.page_size == 0) return;

  // Pages of a pool in any order, more than are used; what lies behind a sequence's end is never
  // read.
  if (!s.used_k) {
    spec.seqlen_k = (s.seqlen_k + s.page_size - 1) / s.page_size * s.page_size;
    for (std::size_t b = 0; b < sequences_.size(); ++b)
      sequences_[b].k_len = spec.seqlen_k - sequences_[b].k_row;
  } else {
    options.max_seqlen_k = s.seqlen_k;
  }
  const int64_t most = (spec.seqlen_k + s.page_size - 1) / s.page_size;
  num_pages_ = s.batch * most + random.between(0, 3);
  std::vector<int> pool(static_cast<std::size_t>(num_pages_));
  std::iota(pool.begin(), pool.end(), 0);
  for (std::size_t n = pool.size(); n > 1; --n) {
    std::swap(pool[n - 1],
              pool[static_cast<std::size_t>(random.between(0, static_cast<int64_t>(n) - 1))]);
  }
  std::vector<int> table;
  for (const Sequence& one : sequences_) {
    std::vector<int> mine;
    for (int64_t page = 0; page < most; ++page) {
      const bool used =
          (page + 1) * s.page_size > one.k_row && page * s.page_size < one.k_row + one.k_len;
      mine.push_back(used ? pool.back() : -12345);
      pool.pop_back();
    }
    table.insert(table.end(), mine.begin(), mine.end());
    pages_.push_back(std::move(mine));
  }
  tensors.block_table = int32_tensor(table, s.batch);
}

Tensor Case::int32_tensor(const std::vector<int>& values, int64_t rows) {
  const int64_t columns = rows == 0 ? 0 : static_cast<int64_t>(values.size()) / rows;
  const Tensor t{allocate(values.size() * sizeof(int)),
                 DType::int32,
                 {1, 1, rows, columns},
                 {0, 0, columns, 1}};
  std::copy(values.begin(), values.end(), static_cast<int*>(t.data));
  return t;
}

Tensor Case::key_rows(int64_t dim) {
  const bool paged = spec.page_size > 0;
  const int64_t batch = paged ? num_pages_ : spec.packed_k ? 1 : spec.batch;
  const int64_t rows = paged ? spec.page_size : spec.packed_k ? rows_k_ : spec.seqlen_k;
  return strided(spec.dtype, batch, rows, spec.num_kv_heads, dim);
}

std::array<int64_t, 4> Case::key_at(int64_t b, int64_t j, int64_t head, int64_t d) const {
  const int64_t row = sequences_[static_cast<std::size_t>(b)].k_row + j;
  if (spec.page_size == 0) return {spec.packed_k ? 0 : b, row, head, d};
  const int page =
      pages_[static_cast<std::size_t>(b)][static_cast<std::size_t>(row / spec.page_size)];
  return {page, row % spec.page_size, head, d};
}

void Case::fill_queries(const Tensor& tensor, float size, Random& random) {
  for (int64_t b = 0; b < spec.batch; ++b) {
    const Sequence& one = sequences_[static_cast<std::size_t>(b)];
    for (int64_t i = 0; i < one.q_len; ++i) {
      for (int64_t h = 0; h < tensor.shape[2]; ++h) {
        for (int64_t d = 0; d < tensor.shape[3]; ++d)
          set(tensor, {spec.packed_q ? 0 : b, one.q_row + i, h, d}, size * random.normal());
      }
    }
  }
}

void Case::fill_keys(const Tensor& tensor, float size, Random& random) {
  for (int64_t b = 0; b < spec.batch; ++b) {
    for (int64_t j = 0; j < sequences_[static_cast<std::size_t>(b)].k_len; ++j) {
      for (int64_t h = 0; h < tensor.shape[2]; ++h) {
        for (int64_t d = 0; d < tensor.shape[3]; ++d)
          set(tensor, key_at(b, j, h, d), size * random.normal());
      }
    }
  }
}

bool Case::belongs_to_sequence(Tensor AttentionTensors::* tensor,
                               const std::array<int64_t, 4>& at) const {
  using T = AttentionTensors;
  const bool queries = tensor == &T::out || tensor == &T::dq, numbers = tensor == &T::lse;
  const bool keys = tensor == &T::dk || tensor == &T::dv;
  if (sequences_.empty())
    return !(spec.packed_q && (queries || numbers)) && !(spec.packed_k && keys);
  const Sequence &first = sequences_.front(), &last = sequences_.back();
  if (spec.packed_q && (queries || numbers)) {
    const int64_t row = at[numbers ? 2 : 1];
    return row >= first.q_row && row < last.q_row + last.q_len;
  }
  if (spec.packed_k && keys) return at[1] >= first.k_row && at[1] < last.k_row + last.k_len;
  return true;
}

}  // namespace fulmen::testing

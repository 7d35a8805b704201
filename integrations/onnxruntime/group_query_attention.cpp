// com.microsoft.GroupQueryAttention.
#include <algorithm>
#include <cstring>

#include "cache.h"
#include "node.h"
#include "rows.h"

namespace fulmen_ort {
namespace {

// The new rows of query, key and value; packed side by side where there is no key.
struct NewRows {
  fulmen_tensor q, k, v;
};

NewRows read(const Run& run, int64_t heads, int64_t kv_heads) {
  const Value q = run.input(0, "query"), k = run.input(1, "key"), v = run.input(2, "value");
  if (k.present() != v.present()) (k.present() ? v : k).refuse("key and value, or neither,");
  const int64_t all = k.present() ? heads : heads + 2 * kv_heads;
  if (q.dims.size() != 3 || q.dims[2] % all != 0)
    q.refuse("[batch, sequence, a multiple of " + std::to_string(all) + " heads]");
  const int64_t batch = q.dims[0], rows = q.dims[1], dim = q.dims[2] / all;
  if (k.present()) {
    // A key of no rows: another layer's cache is attended as it is.
    const int64_t fresh = k.dims.size() == 3 && k.dims[1] == 0 ? 0 : rows;
    k.expect({batch, fresh, kv_heads * dim}, "[batch, sequence, kv_num_heads * head_size]");
    v.expect({batch, fresh, kv_heads * dim}, "[batch, sequence, kv_num_heads * head_size]");
    return {as_heads(q, heads), as_heads(k, kv_heads), as_heads(v, kv_heads)};
  }
  const auto part = [&](int64_t own, int64_t skipped) {
    auto* data = static_cast<std::byte*>(q.data);
    if (data != nullptr) data += skipped * dim * static_cast<int64_t>(bytes_of(q.dtype));
    fulmen_tensor tensor = fulmen_tensor_bshd(data, q.dtype, batch, rows, own, dim);
    tensor.strides[1] = q.dims[2];
    tensor.strides[0] = rows * q.dims[2];
    return tensor;
  };
  return {part(heads, 0), part(kv_heads, heads), part(kv_heads, heads + kv_heads)};
}

int64_t total_of(const Run& run) {
  const Value total = run.input(6, "total_sequence_length");
  if (total.dtype != FULMEN_INT32 || total.elements() != 1) total.refuse("one int32");
  const int64_t keys = *static_cast<const int32_t*>(total.data);
  if (keys < 1)
    fail("total_sequence_length is " + std::to_string(keys) + "; 1 or more is accepted");
  return keys;
}

// Which of the new rows are tokens, and where they belong.
struct Sequences {
  std::vector<int64_t> lengths;  // tokens of each sequence after the run
  std::vector<int64_t> before;   // and in front of the new rows
  std::vector<int64_t> fresh;    // new ones, at the front of the rows
  bool prompt = false;           // the first rows of all sequences
};

Sequences sequences_of(const Run& run, const Attributes& a, int64_t batch, int64_t rows,
                       int64_t total) {
  const Value last = run.input(5, "seqlens_k"), given = run.input(16, "query_seqlens");
  if (last.dtype != FULMEN_INT32 || last.elements() != batch || last.dims.empty())
    last.refuse("int32 with a number for each of " + std::to_string(batch) + " sequences");
  if (given.present()) given.expect({batch}, "[batch]");
  Sequences s;
  s.prompt = rows == total && !a.sliding_window_cache && !given.present();
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = int64_t{static_cast<const int32_t*>(last.data)[b]} + 1;
    // A first prompt is padded at its end: row i is at position i. Later rows end at their lengths.
    int64_t fresh = s.prompt ? std::min(rows, length) : rows;
    if (given.present()) {
      fresh = static_cast<const int32_t*>(given.data)[b];
      if (fresh < 0 || fresh > std::min(rows, length))
        fail("query_seqlens is " + std::to_string(fresh) + " of sequence " + std::to_string(b) +
             "; 0 to " + std::to_string(std::min(rows, length)) + " is accepted");
    }
    s.lengths.push_back(length);
    s.fresh.push_back(fresh);
    s.before.push_back(s.prompt ? 0 : length - fresh);
  }
  return s;
}

// The position of each new row: those of position_ids, of which a first prompt takes the first
// number alone, else those behind the tokens before. That of padding is 0.
std::vector<int64_t> positions_of(const Run& run, const Sequences& sequences, int64_t rows,
                                  int64_t most) {
  const Value ids = run.input(9, "position_ids");
  const auto batch = static_cast<int64_t>(sequences.before.size());
  if (ids.present() && !sequences.prompt)
    ids.expect({batch, rows}, "[batch, sequence]");
  else if (ids.present() && (ids.dims.size() != 2 || ids.elements() < 1))
    ids.refuse("[batch, sequence]");
  const auto* given = static_cast<const int64_t*>(ids.data);
  std::vector<int64_t> positions(static_cast<std::size_t>(batch * rows), 0);
  for (std::size_t b = 0; b < sequences.before.size(); ++b)
    for (int64_t i = 0; i < sequences.fresh[b]; ++i) {
      const std::size_t index = b * static_cast<std::size_t>(rows) + static_cast<std::size_t>(i);
      int64_t& at = positions[index];
      at = sequences.before[b] + i;
      if (ids.present()) at = sequences.prompt ? given[0] + i : given[index];
      if (at < 0 || at >= most)
        fail("position " + std::to_string(at) + " of row " + std::to_string(i) + " in sequence " +
             std::to_string(b) + " has no row in cos_cache; 0 to " + std::to_string(most - 1) +
             " is accepted");
    }
  return positions;
}

std::vector<float> numbers_of(const Value& value) {
  std::vector<float> numbers(static_cast<std::size_t>(value.elements()));
  widen(value.data, value.dtype, value.elements(), numbers.data());
  return numbers;
}

std::vector<float> norm_of(const Run& run, std::size_t index, const char* name, int64_t dim) {
  const Value weight = run.input(index, name);
  if (!weight.present()) return {};
  weight.expect({dim}, "[head_size]");
  return numbers_of(weight);
}

}  // namespace

void Node::group_query_attention(Run& run) const {
  const Attributes& a = attributes_;
  fulmen_tensors& t = run.tensors;
  const NewRows fresh = read(run, a.q_heads, a.kv_heads);
  const int64_t batch = fresh.q.shape[0], rows = fresh.q.shape[1], dim = fresh.q.shape[3];
  const int64_t keys = total_of(run);
  const Sequences sequences = sequences_of(run, a, batch, rows, keys);
  Cache cache(run, a, {fresh.k, fresh.v}, keys, sequences.before, sequences.lengths);

  Preparation q, k;
  q.norm_weight = norm_of(run, 14, "q_norm_weight", dim);
  k.norm_weight = norm_of(run, 15, "k_norm_weight", dim);
  q.epsilon = a.q_norm_epsilon;
  k.epsilon = a.k_norm_epsilon;
  std::vector<int64_t> positions;
  Rotary rotary;
  if (a.rotary) {
    rotary =
        as_rotary(run.input(7, "cos_cache"), run.input(8, "sin_cache"), dim, a.rotary_interleaved);
    positions = positions_of(run, sequences, rows, rotary.positions());
    q.rotary = k.rotary = &rotary;
  }
  t.q = fresh.q;
  if (!q.copies()) {
    void* data =
        run.memory(batch * rows * a.q_heads * dim * static_cast<int64_t>(bytes_of(fresh.q.dtype)));
    t.q = fulmen_tensor_bshd(data, fresh.q.dtype, batch, rows, a.q_heads, dim);
    write_rows(fresh.q, q, positions, t.q, std::vector<int64_t>(sequences.before.size(), 0));
  }
  cache.append(k, positions);
  cache.attend();

  t.out = as_heads(run.output(0, "output", {batch, rows, a.q_heads * dim}), a.q_heads);
  if (const Value bias = run.input(10, "attention_bias"); bias.present()) {
    const std::vector<int64_t>& d = bias.dims;
    if (d.size() != 4 || (d[0] != batch && d[0] != 1) || (d[1] != a.q_heads && d[1] != 1) ||
        d[2] != rows || d[3] != keys)
      bias.refuse("[batch or 1, num_heads or 1, sequence, total_sequence_length] = [" +
                  std::to_string(batch) + " or 1, " + std::to_string(a.q_heads) + " or 1, " +
                  std::to_string(rows) + ", " + std::to_string(keys) + "]");
    t.bias = cache.columns_of(as_bias(bias));
    t.k.shape[1] = t.v.shape[1] = t.bias.shape[3];
  }
  if (const Value sink = run.input(11, "head_sink"); sink.present()) {
    sink.expect({a.q_heads}, "[num_heads]");
    run.sinks = numbers_of(sink);
  } else if (a.smooth_softmax) {
    run.sinks.assign(static_cast<std::size_t>(a.q_heads), 0);
  }
  if (!run.sinks.empty()) t.sinks = fulmen_tensor_1d(run.sinks.data(), FULMEN_FP32, a.q_heads);
  if (a.causal) run.options.causal = FULMEN_CAUSAL_BOTTOM_RIGHT;
  if (a.window > 0) run.options.window_left = a.window - 1;
  execute(run);
  cache.write_back();
}

}  // namespace fulmen_ort

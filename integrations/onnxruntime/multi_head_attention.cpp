// com.microsoft.MultiHeadAttention.
#include "key_padding.h"
#include "node.h"

namespace fulmen_ort {
namespace {

// One of the `parts` that lie side by side in [batch, sequence, heads, parts, size].
fulmen_tensor part_of(const Value& packed, int64_t heads, int64_t parts, int64_t part) {
  const std::vector<int64_t>& d = packed.dims;
  if (d.size() != 5 || d[2] != heads || d[3] != parts)
    packed.refuse("[batch, sequence, " + std::to_string(heads) + " heads, " +
                  std::to_string(parts) + ", size]");
  auto* data = static_cast<std::byte*>(packed.data);
  if (data != nullptr) data += part * d[4] * static_cast<int64_t>(bytes_of(packed.dtype));
  fulmen_tensor tensor = fulmen_tensor_bshd(data, packed.dtype, d[0], d[1], heads, d[4]);
  tensor.strides[2] = parts * d[4];
  tensor.strides[1] = heads * tensor.strides[2];
  tensor.strides[0] = d[1] * tensor.strides[1];
  return tensor;
}

struct Projections {
  Rows q, k, v;
};

// A key or value beside a query of three dims: [batch, keys, heads * size], or, of another
// projection, [batch, heads, keys, size]. keys and size are -1 where any is right.
fulmen_tensor read_own(const Value& value, int64_t heads, int64_t batch, int64_t keys,
                       int64_t size) {
  const fulmen_tensor t = as_heads(value, heads);
  const auto wanted = [](int64_t n) { return n < 0 ? std::string("any") : std::to_string(n); };
  const std::string hidden = size < 0 ? "heads * size" : std::to_string(heads * size);
  if (t.shape[0] != batch || t.shape[2] != heads || (keys >= 0 && t.shape[1] != keys) ||
      (size >= 0 && t.shape[3] != size))
    value.refuse("[batch, keys, heads * size] = [" + std::to_string(batch) + ", " + wanted(keys) +
                 ", " + hidden + "] or [batch, heads, keys, size] = [" + std::to_string(batch) +
                 ", " + std::to_string(heads) + ", " + wanted(keys) + ", " + wanted(size) + "]");
  return t;
}

// Query, key and value of each layout.
Projections read(const Run& run, int64_t heads) {
  const Value q = run.input(0, "query"), k = run.input(1, "key"), v = run.input(2, "value");
  if (!k.present() && v.present()) k.refuse("a key beside a value");
  if (!k.present())
    return {{part_of(q, heads, 3, 0)}, {part_of(q, heads, 3, 1)}, {part_of(q, heads, 3, 2)}};
  if (q.dims.size() != 3) q.refuse("[batch, sequence, heads * size] beside a key");
  const Rows query{as_heads(q, heads)};
  if (!v.present()) return {query, {part_of(k, heads, 2, 0)}, {part_of(k, heads, 2, 1)}};
  if (k.dims.size() != v.dims.size()) v.refuse("as many dims as the key's");
  const int64_t* s = query.tensor.shape;
  const Rows key{read_own(k, heads, s[0], -1, s[3])};
  return {query, key, {read_own(v, heads, s[0], key.tensor.shape[1], -1)}};
}

// The projections' bias, [hidden + hidden + v_hidden]. A key and value of four dims are another
// projection's: they have theirs already.
void take_bias(const Run& run, Projections& p) {
  const Value bias = run.input(3, "bias");
  if (!bias.present()) return;
  const int64_t hidden = p.q.tensor.shape[2] * p.q.tensor.shape[3];
  const int64_t v_hidden = p.v.tensor.shape[2] * p.v.tensor.shape[3];
  bias.expect({2 * hidden + v_hidden}, "[hidden + hidden + v_hidden]");
  if (run.input(1, "key").present() && !run.input(2, "value").present())
    bias.refuse("no bias beside a packed key and value");
  const auto at = [&](int64_t first) {
    return static_cast<const std::byte*>(bias.data) +
           first * static_cast<int64_t>(bytes_of(bias.dtype));
  };
  p.q.bias = at(0);
  if (run.input(1, "key").dims.size() == 4) return;
  p.k.bias = at(hidden);
  p.v.bias = at(2 * hidden);
}

// past_sequence_length's number, where past and present are of the longest length: the new rows
// begin behind so many.
int64_t used_of(const Value& used, const Value& past, int64_t fresh) {
  if (used.dtype != FULMEN_INT32 || used.elements() != 1) used.refuse("one int32");
  const int64_t rows = *static_cast<const int32_t*>(used.data);
  if (past.dims.size() != 4) past.refuse("[batch, heads, rows, size] beside past_sequence_length");
  if (rows < 0 || rows + fresh > past.dims[2])
    fail("past_sequence_length is " + std::to_string(rows) + "; 0 to " +
         std::to_string(past.dims[2] - fresh) + " is accepted: past_key has " +
         std::to_string(past.dims[2]) + " rows");
  return rows;
}

// The rows of `past` with the new ones behind the first `used`, in its output.
fulmen_tensor appended(Run& run, const Value& past, const Rows& fresh, int64_t used,
                       std::size_t which) {
  const fulmen_tensor old = as_past(past, fresh.tensor);
  const Value present = run.output(which, which == 1 ? "present_key" : "present_value", past.dims);
  if (!present.present()) present.refuse("an output beside past_sequence_length");
  fulmen_tensor all = as_heads(present, 0);
  if (past.data != present.data) copy_rows({old}, old.shape[1], all, 0);
  copy_rows(fresh, fresh.tensor.shape[1], all, used);
  all.shape[1] = used + fresh.tensor.shape[1];
  return all;
}

}  // namespace

void Node::multi_head_attention(Run& run) const {
  const Value padding = run.input(4, "key_padding_mask"), bias = run.input(5, "attention_bias");
  const Value past_k = run.input(6, "past_key"), past_v = run.input(7, "past_value");
  const Value used = run.input(8, "past_sequence_length");
  fulmen_tensors& t = run.tensors;
  const int64_t heads = attributes_.q_heads;
  Projections p = read(run, heads);
  take_bias(run, p);
  const int64_t batch = p.q.tensor.shape[0], queries = p.q.tensor.shape[1];
  t.out = as_heads(run.output(0, "output", {batch, queries, heads * p.v.tensor.shape[3]}), heads);
  t.q = run.with_bias(p.q);
  if (past_k.present() != past_v.present())
    (past_k.present() ? past_v : past_k).refuse("past_key and past_value, or neither,");
  int64_t before = past_k.present() && past_k.dims.size() == 4 ? past_k.dims[2] : 0;
  if (used.present() && past_k.present()) {
    before = used_of(used, past_k, p.k.tensor.shape[1]);
    t.k = appended(run, past_k, p.k, before, 1);
    t.v = appended(run, past_v, p.v, before, 2);
  } else {
    t.k = run.joined(past_k, p.k, 1);
    t.v = run.joined(past_v, p.v, 2);
  }
  if (bias.present()) {
    t.bias = as_bias(bias);
    const int64_t* s = t.bias.shape;
    if (bias.dims.size() != 4 || (s[0] != batch && s[0] != 1) || (s[1] != heads && s[1] != 1) ||
        s[2] != queries || s[3] != t.k.shape[1])
      bias.refuse("[batch or 1, heads or 1, queries, keys] = [" + std::to_string(batch) +
                  " or 1, " + std::to_string(heads) + " or 1, " + std::to_string(queries) + ", " +
                  std::to_string(t.k.shape[1]) + "]");
  }
  // The CPU provider masks nothing of the last query.
  const bool causal = attributes_.causal && queries > 1;
  if (padding.present()) {
    mask_keys(run, padding, causal, before);
  } else if (causal) {
    run.attend_band(before, -1, 0);
    if (p.k.tensor.shape[1] > queries) {
      run.options.causal = FULMEN_CAUSAL_NONE;
      run.mask_mod =
          "k - q <= " + std::to_string(before) + " | q == " + std::to_string(queries - 1);
      run.options.mask_mod = run.mask_mod.c_str();
    }
  }
  execute(run);
}

}  // namespace fulmen_ort

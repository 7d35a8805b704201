// Attention of ONNX, opset 23 to 25.
#include <cstring>

#include "node.h"

namespace fulmen_ort {
namespace {

// The mask with keys that it has no column for masked, in memory where there are such.
fulmen_tensor padded(Run& run, const fulmen_tensor& mask, int64_t keys) {
  const int64_t own = mask.shape[3], rows = mask.shape[0] * mask.shape[1] * mask.shape[2];
  if (own >= keys || own == 1) return mask;
  const std::size_t bytes = bytes_of(mask.dtype);
  const uint32_t infinity = mask.dtype == FULMEN_FP32   ? 0xFF800000U
                            : mask.dtype == FULMEN_BF16 ? 0xFF80U
                                                        : 0xFC00U;
  const uint32_t hidden = mask.dtype == FULMEN_BOOLEAN ? 0 : infinity;
  auto* memory = static_cast<std::byte*>(run.memory(rows * keys * static_cast<int64_t>(bytes)));
  for (int64_t row = 0; row < rows; ++row) {
    std::byte* to = memory + static_cast<std::size_t>(row * keys) * bytes;
    const auto taken = static_cast<std::size_t>(own) * bytes;
    std::memcpy(to,
                static_cast<const std::byte*>(mask.data) + static_cast<std::size_t>(row) * taken,
                taken);
    for (std::byte* at = to + taken; at < to + static_cast<std::size_t>(keys) * bytes; at += bytes)
      std::memcpy(at, &hidden, bytes);
  }
  return fulmen_tensor_bhqk(memory, mask.dtype, mask.shape[0], mask.shape[1], mask.shape[2], keys);
}

}  // namespace

void Node::attention(Run& run) const {
  const Value q = run.input(0, "Q"), k = run.input(1, "K"), v = run.input(2, "V");
  const Value mask = run.input(3, "attn_mask"), past_k = run.input(4, "past_key");
  const Value past_v = run.input(5, "past_value"), lengths = run.input(6, "nonpad_kv_seqlen");
  fulmen_tensors& t = run.tensors;
  t.q = as_heads(q, attributes_.q_heads);
  const fulmen_tensor new_k = as_heads(k, attributes_.kv_heads);
  const fulmen_tensor new_v = as_heads(v, attributes_.kv_heads);
  std::vector<int64_t> dims = q.dims;
  dims.back() = dims.size() == 3 ? attributes_.q_heads * new_v.shape[3] : new_v.shape[3];
  t.out = as_heads(run.output(0, "Y", dims), attributes_.q_heads);
  t.k = run.joined(past_k, {new_k}, 1);
  t.v = run.joined(past_v, {new_v}, 2);
  if (mask.present())
    (mask.dtype == FULMEN_BOOLEAN ? t.keep_mask : t.bias) =
        padded(run, as_bias(mask), t.k.shape[1]);
  if (lengths.present()) {
    lengths.expect({q.dims[0]}, "a number for each sequence");
    const auto* from = static_cast<const int64_t*>(lengths.data);
    for (int64_t b = 0; b < t.q.shape[0]; ++b) {
      if (from[b] < 0 || from[b] > t.k.shape[1])
        fail("nonpad_kv_seqlen is " + std::to_string(from[b]) + "; 0 to " +
             std::to_string(t.k.shape[1]) + " is accepted");
      run.lengths.push_back(static_cast<int32_t>(from[b]));
    }
    t.seqlens_k = fulmen_tensor_1d(run.lengths.data(), FULMEN_INT32, t.q.shape[0]);
  }
  // Queries are a sequence's last ones where its length is given.
  const int64_t before = lengths.present()  ? t.k.shape[1] - t.q.shape[1]
                         : past_k.present() ? past_k.dims[2]
                                            : 0;
  run.attend_band(before, attributes_.left, attributes_.causal ? 0 : attributes_.right);
  execute(run);
}

}  // namespace fulmen_ort

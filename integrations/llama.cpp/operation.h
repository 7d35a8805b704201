// GGML_OP_FLASH_ATTN_EXT in plain structs, and the Fulmen call that computes it. Nothing here needs
// ggml's headers, so that it is tested without llama.cpp's source (tests/integrations).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fulmen/fulmen_c.h"

namespace fulmen_ggml {

// A ggml_tensor: ne elements in each dim, nb bytes from one to the next, dim 0 the innermost. q is
// [head_dim, seqlen_q, num_heads, batch], k and v [head_dim, seqlen_k, num_kv_heads, batch], the
// mask [seqlen_k, seqlen_q, 1 or num_heads, 1 or batch], out [head_dim_v, num_heads, seqlen_q,
// batch].
struct View {
  void* data = nullptr;
  int32_t dtype = -1;          // fulmen_dtype; -1: Fulmen does not have it
  const char* type_name = "";  // ggml's word
  std::size_t type_size = 0;   // bytes of an element, or of a block of 32
  int64_t ne[4] = {};
  std::size_t nb[4] = {};
};

// out = softmax(softcap(scale q k^T) + slope mask, sinks) v, with a slope for each head from
// max_bias (0: all are 1) as ggml has them, and softcap(s) = logit_softcap tanh(s / logit_softcap).
struct Operation {
  View q, k, v, mask, sinks, out;
  bool has_mask = false, has_sinks = false;
  float scale = 1, max_bias = 0, logit_softcap = 0;
};

// How the mask goes into the call, by what it holds.
enum class MaskForm {
  none,    // no mask, or one that hides nothing between the first and the last key
  keep,    // 0 and -inf alone: bytes, by which kernels skip whole tiles
  bias,    // numbers: the mask itself, as it lies
  slopes,  // numbers beside max_bias: the mask times its head's slope, in a score function
};

// Keys from first to last - 1 are attended by some query.
struct Keys {
  int64_t first = 0, last = 0;
};

// A call of the C ABI. The structs point at each other: not to be copied.
struct Call {
  fulmen_tensors tensors;
  fulmen_options options;
  fulmen_function_tensor function_tensors[2];
  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
};

// The dtype of the call's q and out: k's or v's where one is no block format, else fp32. ggml's q
// and out are fp32, and ggml rounds q to the same dtype.
int32_t working_dtype(const Operation& operation);

// ggml's slopes, one a head; [num_heads].
std::vector<float> alibi_slopes(int64_t num_heads, float max_bias);

// What of the operation no call can say, in words; "" if a call can. Asks no kernel.
std::string why_not_translated(const Operation& operation);

// The call of an operation of which why_not_translated says "". q and out are where the tensors of
// working_dtype lie: the operation's own in fp32, else [batch, seqlen, num_heads, head_dim] without
// gaps. keep: as summarize_mask makes it (mask.h), for the form keep. slopes: for the form slopes.
void translate(const Operation& operation, MaskForm form, Keys keys, void* q, void* out,
               const uint8_t* keep, const float* slopes, Call& call);

// Shapes, strides and dtypes of a call, its scale, softcap and function: equal for calls that one
// plan serves.
std::vector<int64_t> plan_key(const Call& call);

}  // namespace fulmen_ggml

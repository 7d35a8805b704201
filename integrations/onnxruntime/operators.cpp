// The operators' versions, inputs, outputs and attributes.
#include "served.h"

namespace fulmen_ort {
namespace {

constexpr const char* kScores = "scores are never in memory as a whole";

}  // namespace

const std::vector<Registered>& operators() {
  static const std::vector<Registered> all = {
      {Operator::attention,
       "Attention",
       "",
       23,
       25,
       {{"Q", ""},
        {"K", ""},
        {"V", ""},
        {"attn_mask", ""},
        {"past_key", ""},
        {"past_value", ""},
        {"nonpad_kv_seqlen", ""}},
       {{"Y", ""}, {"present_key", ""}, {"present_value", ""}, {"qk_matmul_output", kScores}},
       {"q_num_heads", "kv_num_heads", "is_causal", "scale", "softcap", "softmax_precision",
        "qk_matmul_output_mode", "left_window_size", "right_window_size"}},
      {Operator::multi_head_attention,
       "MultiHeadAttention",
       "com.microsoft",
       1,
       1,
       {{"query", ""},
        {"key", ""},
        {"value", ""},
        {"bias", ""},
        {"key_padding_mask", ""},
        {"attention_bias", ""},
        {"past_key", ""},
        {"past_value", ""},
        {"past_sequence_length", ""},
        {"cache_indirection", "beams of one search share no keys here"}},
       {{"output", ""}, {"present_key", ""}, {"present_value", ""}, {"qk", kScores}},
       {"num_heads", "unidirectional", "scale", "mask_filter_value"}},
      {Operator::group_query_attention,
       "GroupQueryAttention",
       "com.microsoft",
       1,
       1,
       {{"query", ""},
        {"key", ""},
        {"value", ""},
        {"past_key", ""},
        {"past_value", ""},
        {"seqlens_k", ""},
        {"total_sequence_length", ""},
        {"cos_cache", ""},
        {"sin_cache", ""},
        {"position_ids", ""},
        {"attention_bias", ""},
        {"head_sink", ""},
        {"k_scale", ""},
        {"v_scale", ""},
        {"q_norm_weight", ""},
        {"k_norm_weight", ""},
        {"query_seqlens", ""}},
       {{"output", ""}, {"present_key", ""}, {"present_value", ""}, {"output_qk", kScores}},
       {"num_heads", "kv_num_heads", "causal", "scale", "softcap", "local_window_size", "do_rotary",
        "rotary_interleaved", "smooth_softmax", "qk_output", "qk_norm_epsilon", "q_norm_epsilon",
        "k_norm_epsilon", "sliding_window_cache", "k_quant_type", "v_quant_type",
        "kv_cache_bit_width"}},
  };
  return all;
}

Attributes attributes_of(Operator op, const OrtKernelInfo* info) {
  const auto integer = [info](const char* name, int64_t value) {
    succeeded(ort->KernelInfoGetAttribute_int64(info, name, &value));
    return value;
  };
  const auto real = [info](const char* name, float value) {
    succeeded(ort->KernelInfoGetAttribute_float(info, name, &value));
    return value;
  };
  const auto quantized = [info](const char* name) {
    char value[32] = {};
    std::size_t size = sizeof value;
    if (!succeeded(ort->KernelInfoGetAttribute_string(info, name, value, &size)))
      return Quantized::no;
    const std::string_view kind = value;
    return kind == "PER_TENSOR"    ? Quantized::per_tensor
           : kind == "PER_CHANNEL" ? Quantized::per_channel
                                   : Quantized::no;
  };
  const bool own_heads = op == Operator::attention;
  Attributes a;
  a.scale = real("scale", 0);
  a.softcap = op == Operator::multi_head_attention ? 0 : real("softcap", 0);
  a.q_heads = integer(own_heads ? "q_num_heads" : "num_heads", 0);
  a.kv_heads = op == Operator::multi_head_attention ? a.q_heads : integer("kv_num_heads", 0);
  a.causal = op == Operator::attention              ? integer("is_causal", 0) != 0
             : op == Operator::multi_head_attention ? integer("unidirectional", 0) != 0
                                                    : integer("causal", 1) != 0;
  a.left = integer("left_window_size", -1);
  a.right = integer("right_window_size", -1);
  if (op != Operator::group_query_attention) return a;
  a.window = integer("local_window_size", -1);
  a.sliding_window_cache = integer("sliding_window_cache", 0) != 0;
  a.rotary = integer("do_rotary", 0) != 0;
  a.rotary_interleaved = integer("rotary_interleaved", 0) != 0;
  a.smooth_softmax = integer("smooth_softmax", 0) > 0;
  const float epsilon = real("qk_norm_epsilon", a.q_norm_epsilon);
  a.q_norm_epsilon = real("q_norm_epsilon", epsilon);
  a.k_norm_epsilon = real("k_norm_epsilon", epsilon);
  a.k_quantized = quantized("k_quant_type");
  a.v_quantized = quantized("v_quant_type");
  a.cache_bits = integer("kv_cache_bit_width", 0);
  const bool quantizes = a.k_quantized != Quantized::no || a.v_quantized != Quantized::no;
  if (quantizes && a.cache_bits == 0) a.cache_bits = 8;
  return a;
}

}  // namespace fulmen_ort

#include "served.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "key_padding.h"

namespace fulmen_ort {
namespace {

template <class T>
T attribute(const OrtNode* node, const char* name, OrtOpAttrType type, T otherwise) {
  const OrtOpAttr* found = nullptr;
  T value = otherwise;
  std::size_t bytes = 0;
  if (!succeeded(ort->Node_GetAttributeByName(node, name, &found)) || found == nullptr)
    return otherwise;
  return succeeded(ort->ReadOpAttr(found, type, &value, sizeof value, &bytes)) ? value : otherwise;
}

std::string text(const OrtNode* node, const char* name) {
  const OrtOpAttr* found = nullptr;
  char value[32] = {};
  std::size_t bytes = 0;
  if (!succeeded(ort->Node_GetAttributeByName(node, name, &found)) || found == nullptr) return {};
  return succeeded(ort->ReadOpAttr(found, ORT_OP_ATTR_STRING, value, sizeof value - 1, &bytes))
             ? value
             : "";
}

// Whether a value turns an attribute off. ORT sets the defaults of those that a model leaves out,
// also of attributes that are newer than this file.
bool is_off(const OrtOpAttr* attr) {
  OrtOpAttrType type = ORT_OP_ATTR_UNDEFINED;
  int64_t number = 1;
  float real = 1;
  char words[16] = {};
  std::size_t bytes = 0;
  if (!succeeded(ort->OpAttr_GetType(attr, &type))) return false;
  if (type == ORT_OP_ATTR_INT)
    return succeeded(ort->ReadOpAttr(attr, type, &number, sizeof number, &bytes)) && number == 0;
  if (type == ORT_OP_ATTR_FLOAT)
    return succeeded(ort->ReadOpAttr(attr, type, &real, sizeof real, &bytes)) && real == 0;
  if (type == ORT_OP_ATTR_STRING)
    return succeeded(ort->ReadOpAttr(attr, type, words, sizeof words - 1, &bytes)) &&
           (*words == '\0' || std::strcmp(words, "NONE") == 0);
  return false;
}

// The name of an attribute that is on and not served, or "".
std::string unserved_attribute(const Registered& known, const OrtNode* node) {
  std::size_t count = 0;
  if (!succeeded(ort->Node_GetNumAttributes(node, &count))) return "that cannot be read";
  std::vector<const OrtOpAttr*> attributes(count);
  if (!succeeded(ort->Node_GetAttributes(node, attributes.data(), count)))
    return "that cannot be read";
  for (const OrtOpAttr* attr : attributes) {
    const char* name = nullptr;
    if (!succeeded(ort->OpAttr_GetName(attr, &name))) return "that cannot be read";
    const auto& served = known.attributes;
    if (std::find(served.begin(), served.end(), name) == served.end() && !is_off(attr)) return name;
  }
  return {};
}

bool is_there(const OrtValueInfo* info) {
  const char* name = nullptr;
  return info != nullptr && succeeded(ort->GetValueInfoName(info, &name)) && name != nullptr &&
         *name != '\0';
}

struct Tensor {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::optional<std::size_t> rank;  // where the model says it
};
Tensor tensor_of(const OrtValueInfo* info) {
  Tensor tensor;
  const OrtTypeInfo* type = nullptr;
  const OrtTensorTypeAndShapeInfo* shape = nullptr;
  std::size_t rank = 0;
  if (succeeded(ort->GetValueInfoTypeInfo(info, &type)) &&
      succeeded(ort->CastTypeInfoToTensorInfo(type, &shape)) && shape != nullptr &&
      succeeded(ort->GetTensorElementType(shape, &tensor.type)) &&
      succeeded(ort->GetDimensionsCount(shape, &rank)) && rank > 0)
    tensor.rank = rank;
  return tensor;
}

bool is_number(ONNXTensorElementDataType type) {
  return type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT ||
         type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 ||
         type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
}

// Why GroupQueryAttention's attributes, or types, are not served, or "". has(i): the i-th input is
// there.
template <class Has>
std::string grouped_refusal(const OrtNode* node, const Has& has, ONNXTensorElementDataType cache,
                            bool of_query) {
  const auto number = [node](const char* name, int64_t otherwise) {
    return attribute<int64_t>(node, name, ORT_OP_ATTR_INT, otherwise);
  };
  if (!has(5) || !has(6)) return "seqlens_k or total_sequence_length is missing";
  if (number("do_rotary", 0) != 0 && !(has(7) && has(8)))
    return "do_rotary without cos_cache and sin_cache";
  if (number("sliding_window_cache", 0) != 0) {
    if (number("local_window_size", -1) < 1 || !has(3) || !has(4))
      return "sliding_window_cache without local_window_size, past_key and past_value";
  }
  if (number("causal", 1) == 0 && (has(16) || number("local_window_size", -1) != -1))
    return "query_seqlens or local_window_size without the causal mask";
  if (has(14) != has(15)) return "one of q_norm_weight and k_norm_weight is missing";
  const int64_t bits = number("kv_cache_bit_width", 0);
  bool quantized = false;
  for (const char* name : {"k_quant_type", "v_quant_type"}) {
    const std::string kind = text(node, name);
    if (!kind.empty() && kind != "NONE" && kind != "PER_TENSOR" && kind != "PER_CHANNEL")
      return std::string(name) + " " + kind + " is not served";
    quantized = quantized || (!kind.empty() && kind != "NONE");
  }
  if (!quantized) {
    if (bits == 0 && of_query) return {};
    return "the cache is quantized, and k_quant_type and v_quant_type do not say how";
  }
  // A width that the model does not say is that of the type.
  const bool stored =
      bits == 4 ? cache == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8
                : (bits == 8 || bits == 0) && (cache == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 ||
                                               cache == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN);
  return stored ? "" : "the cache's type is not that of kv_cache_bit_width " + std::to_string(bits);
}

}  // namespace

std::string refusal(const Registered& known, const OrtNode* node,
                    const std::vector<const OrtValueInfo*>& inputs,
                    const std::vector<const OrtValueInfo*>& outputs) {
  const auto has = [&](std::size_t i) { return i < inputs.size() && is_there(inputs[i]); };
  if (!has(0)) return "there is no query";
  const Tensor q = tensor_of(inputs[0]);
  if (!is_number(q.type)) return "the query is neither float, float16 nor bfloat16";
  for (const auto& [given, arguments, kind] :
       {std::tuple{&inputs, &known.inputs, "input "}, {&outputs, &known.outputs, "output "}})
    for (std::size_t i = 0; i < given->size(); ++i) {
      if (!is_there((*given)[i])) continue;
      if (i >= arguments->size()) return kind + std::to_string(i) + " is newer than this provider";
      if (const Argument& argument = (*arguments)[i]; *argument.unserved != '\0')
        return std::string(argument.name) + " is not served: " + argument.unserved;
    }
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}})
    if (!has(i) && known.op == Operator::attention)
      return std::string(known.inputs[i].name) + " is missing";
    else if (has(i) && tensor_of(inputs[i]).type != q.type)
      return std::string(known.inputs[i].name) + " has another type than the query";
  const bool rank = !q.rank || *q.rank == 3 || (*q.rank == 4 && known.op == Operator::attention) ||
                    (*q.rank == 5 && known.op == Operator::multi_head_attention);
  if (!rank) return "the query has " + std::to_string(*q.rank) + " dims";
  if (const std::string name = unserved_attribute(known, node); !name.empty())
    return "attribute " + name + " is not served";
  // MultiHeadAttention has none.
  if (attribute<float>(node, "softcap", ORT_OP_ATTR_FLOAT, 0) > 1000)
    return "softcap is above 1000";
  if (known.op == Operator::attention && has(3)) {
    const ONNXTensorElementDataType mask = tensor_of(inputs[3]).type;
    if (mask != q.type && mask != ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL)
      return "attn_mask is neither bool nor of the query's type";
  }
  if (known.op == Operator::multi_head_attention && has(4) &&
      attribute<float>(node, "mask_filter_value", ORT_OP_ATTR_FLOAT, -10000) > kMasks)
    return "mask_filter_value is above " + std::to_string(static_cast<int>(kMasks));
  if (known.op != Operator::group_query_attention) return {};
  const bool made = outputs.size() > 1 && is_there(outputs[1]);
  const ONNXTensorElementDataType cache = has(3) ? tensor_of(inputs[3]).type
                                          : made ? tensor_of(outputs[1]).type
                                                 : q.type;
  return grouped_refusal(node, has, cache, cache == q.type);
}

}  // namespace fulmen_ort

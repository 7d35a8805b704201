#include "value.h"

#include <algorithm>
#include <stdexcept>

namespace fulmen_ort {

const OrtApi* ort = nullptr;

void fail(const std::string& words) { throw std::runtime_error("Fulmen: " + words); }

void check(OrtStatus* status) {
  if (status == nullptr) return;
  const std::string words = ort->GetErrorMessage(status);
  ort->ReleaseStatus(status);
  throw std::runtime_error(words);
}

bool succeeded(OrtStatus* status) {
  if (status != nullptr) ort->ReleaseStatus(status);
  return status == nullptr;
}

std::string text_of(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

int64_t Value::elements() const {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

void Value::refuse(const std::string& accepted) const {
  fail(std::string(name) + " is " + (present() ? text_of(dims) : "missing") + "; " + accepted +
       " is accepted");
}

void Value::expect(const std::vector<int64_t>& accepted, const char* meaning) const {
  if (dims != accepted) refuse(std::string(meaning) + " = " + text_of(accepted));
}

int32_t dtype_of(ONNXTensorElementDataType type, const char* name) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return FULMEN_FP32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return FULMEN_FP16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return FULMEN_BF16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN:
      return FULMEN_FP8_E4M3;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL:
      return FULMEN_BOOLEAN;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8:
      return FULMEN_INT8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
      return FULMEN_UINT8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return FULMEN_INT32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return FULMEN_INT64;
    default:
      fail(std::string(name) + " is of ONNX's element type " + std::to_string(type) +
           ", which no attention has");
  }
}

std::size_t bytes_of(int32_t dtype) {
  switch (dtype) {
    case FULMEN_INT64:
      return 8;
    case FULMEN_FP32:
    case FULMEN_INT32:
      return 4;
    case FULMEN_FP16:
    case FULMEN_BF16:
      return 2;
    default:
      return 1;
  }
}

fulmen_tensor as_heads(const Value& value, int64_t heads) {
  const std::vector<int64_t>& d = value.dims;
  if (d.size() == 4) return fulmen_tensor_bhsd(value.data, value.dtype, d[0], d[2], d[1], d[3]);
  if (d.size() != 3)
    value.refuse("[batch, sequence, heads * size] or [batch, heads, sequence, size]");
  if (heads <= 0 || d[2] % heads != 0)
    value.refuse("a last dim that is a multiple of " + std::to_string(heads) + " heads");
  return fulmen_tensor_bshd(value.data, value.dtype, d[0], d[1], heads, d[2] / heads);
}

fulmen_tensor as_bias(const Value& value) {
  if (value.dims.size() > 4) value.refuse("up to 4 dims");
  int64_t dims[4] = {1, 1, 1, 1};
  std::copy_backward(value.dims.begin(), value.dims.end(), dims + 4);
  return fulmen_tensor_bhqk(value.data, value.dtype, dims[0], dims[1], dims[2], dims[3]);
}

}  // namespace fulmen_ort

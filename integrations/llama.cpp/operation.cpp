#include "operation.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace fulmen_ggml {
namespace {

bool is_block_format(int32_t dtype) { return dtype >= FULMEN_Q8_0 && dtype <= FULMEN_Q5_1; }
bool is_float(int32_t dtype) { return dtype >= FULMEN_FP32 && dtype <= FULMEN_BF16; }

int64_t in_elements(const View& view, std::size_t bytes) {
  return static_cast<int64_t>(is_block_format(view.dtype) ? bytes : bytes / view.type_size);
}

// Which dims of ggml are a tensor's first three.
struct Order {
  int dims[3];
};
constexpr Order kRows{{3, 1, 2}};           // q, k, v: batch, seqlen, head
constexpr Order kInMemoryOrder{{3, 2, 1}};  // out: batch, seqlen, head; mask: batch, head, query

fulmen_tensor tensor_of(const View& view, Order order, void* data) {
  fulmen_tensor tensor;
  std::memset(&tensor, 0, sizeof tensor);
  tensor.data = data;
  tensor.dtype = view.dtype;
  for (int d = 0; d < 3; ++d) {
    tensor.shape[d] = view.ne[order.dims[d]];
    tensor.strides[d] = in_elements(view, view.nb[order.dims[d]]);
  }
  tensor.shape[3] = view.ne[0];
  tensor.strides[3] = 1;
  return tensor;
}

// The keys of a row-major [.., .., .., all] tensor from keys.first to keys.last - 1, with a stride
// of 0 where a dim has one element.
void take_keys(fulmen_tensor& tensor, Keys keys, std::size_t element_bytes) {
  if (tensor.data != nullptr)
    tensor.data =
        static_cast<char*>(tensor.data) + static_cast<std::size_t>(keys.first) * element_bytes;
  tensor.shape[3] = keys.last - keys.first;
  for (int d = 0; d < 3; ++d)
    if (tensor.shape[d] == 1) tensor.strides[d] = 0;
}

// A row is contiguous, and its address a multiple of an element's bytes.
std::string why_not_strides(const View& view, const char* name) {
  if (view.nb[0] != view.type_size) return std::string(name) + " has gaps within its rows";
  if (is_block_format(view.dtype)) return {};
  for (int d = 1; d < 4; ++d)
    if (view.ne[d] > 1 && view.nb[d] % view.type_size != 0)
      return std::string(name) + "'s strides are no multiples of its elements";
  return {};
}

std::string why_not_mask(const Operation& operation) {
  const View &mask = operation.mask, &q = operation.q;
  if (mask.dtype != FULMEN_FP16) return std::string("the mask is ") + mask.type_name + ", not f16";
  if (mask.ne[0] < operation.k.ne[1] || mask.ne[1] < q.ne[1])
    return "the mask has fewer rows or columns than queries or keys";
  for (const int d : {2, 3})
    if (mask.ne[d] != 1 && mask.ne[d] != q.ne[d])
      return "the mask has neither one row of masks nor one for each head and sequence";
  return why_not_strides(mask, "the mask");
}

}  // namespace

int32_t working_dtype(const Operation& operation) {
  if (!is_block_format(operation.k.dtype)) return operation.k.dtype;
  return is_block_format(operation.v.dtype) ? FULMEN_FP32 : operation.v.dtype;
}

std::vector<float> alibi_slopes(int64_t num_heads, float max_bias) {
  std::vector<float> slopes(static_cast<std::size_t>(num_heads), 1.0F);
  if (max_bias <= 0) return slopes;
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_heads)));
  const float m0 = std::pow(2.0F, -max_bias / static_cast<float>(power));
  const float m1 = std::pow(2.0F, -max_bias / 2.0F / static_cast<float>(power));
  for (int64_t h = 0; h < num_heads; ++h)
    slopes[static_cast<std::size_t>(h)] =
        h < power ? std::pow(m0, static_cast<float>(h + 1))
                  : std::pow(m1, static_cast<float>(2 * (h - power) + 1));
  return slopes;
}

std::string why_not_translated(const Operation& operation) {
  const View &q = operation.q, &k = operation.k, &v = operation.v, &out = operation.out;
  if (q.dtype != FULMEN_FP32 || out.dtype != FULMEN_FP32) return "q or the result is not f32";
  for (const View* view : {&k, &v})
    if (!is_float(view->dtype) && !is_block_format(view->dtype))
      return std::string(view == &k ? "K is " : "V is ") + view->type_name +
             "; f32, f16, bf16, q8_0, q4_0, q4_1, q5_0 and q5_1 are served";
  if (is_float(k.dtype) && is_float(v.dtype) && k.dtype != v.dtype)
    return std::string("K is ") + k.type_name + " and V is " + v.type_name;
  if (k.ne[2] != v.ne[2]) return "K and V differ in their heads";
  if (k.ne[2] == 0 || q.ne[2] % k.ne[2] != 0) return "the heads are no multiple of K's";
  if (k.ne[1] != v.ne[1] || k.ne[0] != q.ne[0] || k.ne[3] != q.ne[3] || v.ne[3] != q.ne[3])
    return "the sizes of Q, K and V contradict each other";
  if (std::string why = why_not_strides(q, "Q"); !why.empty()) return why;
  if (std::string why = why_not_strides(k, "K"); !why.empty()) return why;
  if (std::string why = why_not_strides(v, "V"); !why.empty()) return why;
  if (std::string why = why_not_strides(out, "the result"); !why.empty()) return why;
  if (operation.has_sinks && operation.sinks.dtype != FULMEN_FP32) return "the sinks are not f32";
  return operation.has_mask ? why_not_mask(operation) : std::string();
}

void translate(const Operation& operation, MaskForm form, Keys keys, void* q, void* out,
               const uint8_t* keep, const float* slopes, Call& call) {
  fulmen_tensors_init(&call.tensors);
  fulmen_options_init(&call.options);
  const View &k = operation.k, &v = operation.v, &mask = operation.mask;
  const int64_t batch = operation.q.ne[3], rows = operation.q.ne[1], heads = operation.q.ne[2];
  const int32_t dtype = working_dtype(operation);
  if (dtype == FULMEN_FP32) {
    call.tensors.q = tensor_of(operation.q, kRows, q);
    call.tensors.out = tensor_of(operation.out, kInMemoryOrder, out);
  } else {
    call.tensors.q = fulmen_tensor_bshd(q, dtype, batch, rows, heads, k.ne[0]);
    call.tensors.out = fulmen_tensor_bshd(out, dtype, batch, rows, heads, v.ne[0]);
  }
  for (const bool is_k : {true, false}) {
    const View& view = is_k ? k : v;
    char* data = static_cast<char*>(view.data);
    if (data != nullptr) data += static_cast<std::size_t>(keys.first) * view.nb[1];
    fulmen_tensor& tensor = is_k ? call.tensors.k : call.tensors.v;
    tensor = tensor_of(view, kRows, data);
    tensor.shape[1] = keys.last - keys.first;
  }
  if (operation.has_sinks)
    call.tensors.sinks = fulmen_tensor_1d(operation.sinks.data, FULMEN_FP32, heads);
  call.options.softmax_scale = operation.scale;
  call.options.softcap = operation.logit_softcap;
  if (form == MaskForm::none) return;

  if (form == MaskForm::keep) {
    call.tensors.keep_mask =
        fulmen_tensor_bhqk(keep, FULMEN_BOOLEAN, mask.ne[3], mask.ne[2], rows, operation.k.ne[1]);
    take_keys(call.tensors.keep_mask, keys, 1);
    return;
  }
  fulmen_tensor numbers = tensor_of(mask, kInMemoryOrder, mask.data);
  numbers.shape[2] = rows;
  take_keys(numbers, keys, mask.type_size);
  if (form == MaskForm::bias) {
    call.tensors.bias = numbers;
    return;
  }
  // Slopes differ by head, and a bias has no factor: a tensor of all heads' biases would be
  // num_heads times the mask.
  for (fulmen_function_tensor& tensor : call.function_tensors) {
    std::memset(&tensor, 0, sizeof tensor);
    tensor.struct_size = sizeof tensor;
  }
  call.function_tensors[0].name = "mask";
  call.function_tensors[0].dims = 4;
  for (int d = 0; d < 2; ++d) numbers.shape[d] = d == 0 ? batch : heads;
  call.function_tensors[0].tensor = numbers;
  call.function_tensors[1].name = "slopes";
  call.function_tensors[1].dims = 1;
  fulmen_tensor& factor = call.function_tensors[1].tensor;
  std::memcpy(static_cast<void*>(&factor.data), static_cast<const void*>(&slopes), sizeof slopes);
  factor.dtype = FULMEN_FP32;
  factor.shape[0] = heads;
  factor.strides[0] = 1;
  call.tensors.function_tensors = call.function_tensors;
  call.tensors.num_function_tensors = 2;
  call.options.score_mod = "score + slopes[h] * mask[b, h, q, k]";
}

std::vector<int64_t> plan_key(const Call& call) {
  std::vector<int64_t> key = {std::bit_cast<int32_t>(call.options.softmax_scale),
                              std::bit_cast<int32_t>(call.options.softcap),
                              call.options.num_threads, call.tensors.num_function_tensors};
  const auto add = [&](const fulmen_tensor& tensor) {
    key.push_back(tensor.dtype);
    key.insert(key.end(), tensor.shape, tensor.shape + 4);
    key.insert(key.end(), tensor.strides, tensor.strides + 4);
  };
  const fulmen_tensors& t = call.tensors;
  for (const fulmen_tensor* tensor : {&t.q, &t.k, &t.v, &t.out, &t.bias, &t.keep_mask, &t.sinks})
    add(*tensor);
  for (int64_t i = 0; i < t.num_function_tensors; ++i) add(t.function_tensors[i].tensor);
  return key;
}

}  // namespace fulmen_ggml

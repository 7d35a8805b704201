#include "node.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace fulmen_ort {
namespace {

constexpr std::size_t kMostPlans = 256;  // a token of each context length needs one

[[noreturn]] void fail(const std::string& words) { throw std::runtime_error("Fulmen: " + words); }

void check(OrtStatus* status) {
  if (status == nullptr) return;
  const std::string words = ort->GetErrorMessage(status);
  ort->ReleaseStatus(status);
  throw std::runtime_error(words);
}

int32_t dtype_of(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return FULMEN_FP32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return FULMEN_FP16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL:
      return FULMEN_BOOLEAN;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return FULMEN_INT32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return FULMEN_INT64;
    default:
      fail("a tensor has an element type that no attention has");
  }
}

std::size_t element_bytes(int32_t dtype) { return dtype == FULMEN_FP32 ? 4 : 2; }

// The context of the call that this thread is in: plans are kept, and a context is one run's.
thread_local const OrtKernelContext* running = nullptr;

// On the session's own threads.
void parallel_for(void*, int64_t count, void (*task)(void*, int64_t), void* arg) {
  struct Work {
    void (*task)(void*, int64_t);
    void* arg;
  } work{task, arg};
  const auto one = [](void* data, std::size_t index) {
    const Work& w = *static_cast<const Work*>(data);
    w.task(w.arg, static_cast<int64_t>(index));
  };
  check(ort->KernelContext_ParallelFor(running, one, static_cast<std::size_t>(count),
                                       static_cast<std::size_t>(count), &work));
}

// [batch, seqlen, heads, head_dim] of what is [batch, heads, seqlen, head_dim] in memory, or of
// [batch, seqlen, heads * head_dim].
fulmen_tensor as_heads(const Value& value, int64_t heads) {
  const std::vector<int64_t>& d = value.dims;
  if (d.size() == 4) return fulmen_tensor_bhsd(value.data, value.dtype, d[0], d[2], d[1], d[3]);
  if (d.size() != 3)
    fail("an input has " + std::to_string(d.size()) + " dims; [batch, sequence, heads * size] or " +
         "[batch, heads, sequence, size] is accepted");
  if (heads <= 0 || d[2] % heads != 0)
    fail("an input's last dim is " + std::to_string(d[2]) + ", no multiple of " +
         std::to_string(heads) + " heads");
  return fulmen_tensor_bshd(value.data, value.dtype, d[0], d[1], heads, d[2] / heads);
}

// A cache's rows: [batch, heads, any, size] as the new ones, of their type.
fulmen_tensor as_past(const Value& past, const fulmen_tensor& fresh) {
  const std::vector<int64_t>& d = past.dims;
  if (past.dtype != fresh.dtype || d.size() != 4 || d[0] != fresh.shape[0] ||
      d[1] != fresh.shape[2] || d[3] != fresh.shape[3])
    fail("past keys or values are not [" + std::to_string(fresh.shape[0]) + ", " +
         std::to_string(fresh.shape[2]) + ", any, " + std::to_string(fresh.shape[3]) +
         "] of the new ones' type");
  return as_heads(past, 0);
}

// Rows from..from + count - 1 of `to` become those of `rows`: both of one dtype.
void copy_rows(const fulmen_tensor& rows, int64_t count, const fulmen_tensor& to, int64_t from) {
  const std::size_t bytes = element_bytes(rows.dtype);
  const auto at = [bytes](const fulmen_tensor& t, int64_t b, int64_t s, int64_t h) {
    return static_cast<char*>(t.data) +
           static_cast<std::size_t>(b * t.strides[0] + s * t.strides[1] + h * t.strides[2]) * bytes;
  };
  for (int64_t b = 0; b < rows.shape[0]; ++b)
    for (int64_t h = 0; h < rows.shape[2]; ++h)
      for (int64_t s = 0; s < count; ++s)
        std::memcpy(at(to, b, from + s, h), at(rows, b, s, h),
                    static_cast<std::size_t>(rows.shape[3]) * bytes);
}

std::vector<int64_t> key_of(const fulmen_tensors& t, const fulmen_options& options) {
  std::vector<int64_t> key = {std::bit_cast<int32_t>(options.softmax_scale), options.causal,
                              options.window_left, options.window_right};
  for (const fulmen_tensor* tensor :
       {&t.q, &t.k, &t.v, &t.out, &t.bias, &t.keep_mask, &t.sinks, &t.seqlens_k}) {
    key.push_back(tensor->dtype);
    key.insert(key.end(), tensor->shape, tensor->shape + 4);
    key.insert(key.end(), tensor->strides, tensor->strides + 4);
  }
  return key;
}

}  // namespace

const OrtApi* ort = nullptr;

struct Node::Run {
  OrtKernelContext* context;
  fulmen_tensors tensors;
  fulmen_options options;
  std::string mask_mod;                  // keeps the text alive
  std::vector<int32_t> lengths;          // and these of seqlens_k
  std::vector<std::byte> k, v, q, mask;  // memory for rows that no output has

  explicit Run(OrtKernelContext* of) : context(of) {
    fulmen_tensors_init(&tensors);
    fulmen_options_init(&options);
    options.parallel_for = parallel_for;
    running = of;
  }
  ~Run() { running = nullptr; }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  Value input(std::size_t index) const {
    std::size_t count = 0;
    check(ort->KernelContext_GetInputCount(context, &count));
    Value value;
    const OrtValue* given = nullptr;
    if (index < count) check(ort->KernelContext_GetInput(context, index, &given));
    if (given != nullptr) read(given, value);
    return value;
  }
  // Not present() where the node has no such output.
  Value output(std::size_t index, const std::vector<int64_t>& dims) const {
    std::size_t count = 0;
    check(ort->KernelContext_GetOutputCount(context, &count));
    Value value;
    OrtValue* made = nullptr;
    if (index < count)
      check(ort->KernelContext_GetOutput(context, index, dims.data(), dims.size(), &made));
    if (made != nullptr) read(made, value);
    return value;
  }
  // Room for keys (which: 1) or values (2) that no output has.
  Value in_memory(std::size_t which, int32_t dtype, const std::vector<int64_t>& dims) {
    std::vector<std::byte>& memory = which == 1 ? k : v;
    memory.resize(static_cast<std::size_t>(dims[0] * dims[1] * dims[2] * dims[3]) *
                  element_bytes(dtype));
    return {memory.data(), dtype, dims};
  }
  // All keys (which: 1) or values (2): past rows, then the new ones, in the output `present` where
  // the node has it, else in memory; the new rows as they lie where there is no past.
  fulmen_tensor joined(const Value& past, const fulmen_tensor& fresh, std::size_t which) {
    fulmen_tensor old{};
    if (past.present()) old = as_past(past, fresh);
    const int64_t before = old.shape[1], all = before + fresh.shape[1];
    const std::vector<int64_t> dims = {fresh.shape[0], fresh.shape[2], all, fresh.shape[3]};
    Value present = output(which, dims);
    if (!present.present()) {
      if (before == 0) return fresh;
      present = in_memory(which, fresh.dtype, dims);
    }
    const fulmen_tensor to = as_heads(present, 0);
    if (before > 0) copy_rows(old, before, to, 0);
    copy_rows(fresh, fresh.shape[1], to, before);
    return to;
  }
  // Query i attends the past's keys, `before`, and new ones up to the i-th. q and k are known.
  void attend_until(int64_t before) {
    if (before == tensors.k.shape[1] - tensors.q.shape[1]) {
      options.causal = FULMEN_CAUSAL_BOTTOM_RIGHT;
    } else if (before == 0) {
      options.causal = FULMEN_CAUSAL_TOP_LEFT;
    } else {
      // A diagonal of neither the first query nor the last one.
      mask_mod = "k - q <= " + std::to_string(before);
      options.mask_mod = mask_mod.c_str();
    }
  }

 private:
  static void read(const OrtValue* from, Value& value) {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    check(ort->GetTensorTypeAndShape(from, &info));
    std::size_t dims = 0;
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    OrtStatus* status = ort->GetDimensionsCount(info, &dims);
    value.dims.resize(dims);
    if (status == nullptr) status = ort->GetDimensions(info, value.dims.data(), dims);
    if (status == nullptr) status = ort->GetTensorElementType(info, &type);
    ort->ReleaseTensorTypeAndShapeInfo(info);
    check(status);
    check(ort->GetTensorMutableData(const_cast<OrtValue*>(from), &value.data));
    value.dtype = dtype_of(type);
  }
};

namespace {

// A mask or bias that broadcasts to [batch, heads, queries, keys] from behind.
fulmen_tensor as_bias(const Value& value) {
  if (value.dims.size() > 4) fail("a mask has more than 4 dims");
  int64_t dims[4] = {1, 1, 1, 1};
  std::copy_backward(value.dims.begin(), value.dims.end(), dims + 4);
  return fulmen_tensor_bhqk(value.data, value.dtype, dims[0], dims[1], dims[2], dims[3]);
}

// The mask with keys that it has no column for masked, in memory where there are such.
fulmen_tensor padded(const fulmen_tensor& mask, int64_t keys, std::vector<std::byte>& memory) {
  const int64_t own = mask.shape[3], rows = mask.shape[0] * mask.shape[1] * mask.shape[2];
  if (own >= keys || own == 1) return mask;
  const bool keep = mask.dtype == FULMEN_BOOLEAN;
  const std::size_t bytes = keep ? 1 : element_bytes(mask.dtype);
  const uint32_t infinity = mask.dtype == FULMEN_FP32 ? 0xFF800000U : 0xFC00U;
  memory.resize(static_cast<std::size_t>(rows * keys) * bytes);
  for (int64_t row = 0; row < rows; ++row) {
    std::byte* to = memory.data() + static_cast<std::size_t>(row * keys) * bytes;
    const auto taken = static_cast<std::size_t>(own) * bytes;
    std::memcpy(to,
                static_cast<const std::byte*>(mask.data) + static_cast<std::size_t>(row) * taken,
                taken);
    for (std::byte* at = to + taken; at < to + static_cast<std::size_t>(keys) * bytes; at += bytes)
      keep ? void(*at = std::byte{0}) : void(std::memcpy(at, &infinity, bytes));
  }
  return fulmen_tensor_bhqk(memory.data(), mask.dtype, mask.shape[0], mask.shape[1], mask.shape[2],
                            keys);
}

}  // namespace

void Node::execute(Run& run) const {
  fulmen_options& options = run.options;
  if (attributes_.scale != 0) options.softmax_scale = attributes_.scale;
  options.softcap = attributes_.softcap;
  std::shared_ptr<fulmen_plan> plan;
  std::vector<int64_t> key = key_of(run.tensors, options);
  key.insert(key.end(), run.mask_mod.begin(), run.mask_mod.end());
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = plans_.find(key); found != plans_.end()) plan = found->second;
  }
  if (plan == nullptr) {
    fulmen_plan* made = nullptr;
    if (fulmen_plan_create(&run.tensors, &options, "cpu", &made) != FULMEN_OK)
      fail(fulmen_last_error());
    plan = std::shared_ptr<fulmen_plan>(made, fulmen_plan_destroy);
    const std::scoped_lock lock(mutex_);
    if (plans_.size() >= kMostPlans) plans_.clear();
    plans_.emplace(std::move(key), plan);
  }
  if (fulmen_plan_run(plan.get(), nullptr, &run.tensors, nullptr, 0) != FULMEN_OK)
    fail(fulmen_last_error());
}

void Node::attention(Run& run) const {
  const Value q = run.input(0), k = run.input(1), v = run.input(2), mask = run.input(3);
  const Value past_k = run.input(4), past_v = run.input(5), lengths = run.input(6);
  fulmen_tensors& t = run.tensors;
  t.q = as_heads(q, attributes_.q_heads);
  const fulmen_tensor new_k = as_heads(k, attributes_.kv_heads);
  const fulmen_tensor new_v = as_heads(v, attributes_.kv_heads);
  std::vector<int64_t> dims = q.dims;
  dims.back() = dims.size() == 3 ? attributes_.q_heads * new_v.shape[3] : new_v.shape[3];
  t.out = as_heads(run.output(0, dims), attributes_.q_heads);
  t.k = run.joined(past_k, new_k, 1);
  t.v = run.joined(past_v, new_v, 2);
  if (mask.present())
    (mask.dtype == FULMEN_BOOLEAN ? t.keep_mask : t.bias) =
        padded(as_bias(mask), t.k.shape[1], run.mask);
  if (lengths.present()) {
    if (lengths.dtype != FULMEN_INT64 || lengths.dims.size() != 1 || lengths.dim(0) != q.dim(0))
      fail("nonpad_kv_seqlen is not int64 with a number for each sequence");
    const auto* from = static_cast<const int64_t*>(lengths.data);
    for (int64_t b = 0; b < t.q.shape[0]; ++b) {
      if (from[b] < 0 || from[b] > t.k.shape[1])
        fail("nonpad_kv_seqlen is " + std::to_string(from[b]) + "; 0 to " +
             std::to_string(t.k.shape[1]) + " is accepted");
      run.lengths.push_back(static_cast<int32_t>(from[b]));
    }
    t.seqlens_k = fulmen_tensor_1d(run.lengths.data(), FULMEN_INT32, t.q.shape[0]);
  }
  if (attributes_.causal) {
    if (lengths.present())
      run.options.causal = FULMEN_CAUSAL_BOTTOM_RIGHT;
    else
      run.attend_until(past_k.present() ? past_k.dims[2] : 0);
  }
  execute(run);
}

void Node::multi_head_attention(Run& run) const {
  const Value q = run.input(0), k = run.input(1), v = run.input(2), bias = run.input(5);
  const Value past_k = run.input(6), past_v = run.input(7);
  if (q.dims.size() != 3) fail("MultiHeadAttention's query has 5 dims; three are served");
  fulmen_tensors& t = run.tensors;
  const int64_t heads = attributes_.q_heads;
  t.q = as_heads(q, heads);
  const fulmen_tensor new_k = as_heads(k, heads), new_v = as_heads(v, heads);
  t.out = as_heads(run.output(0, {q.dims[0], q.dims[1], heads * new_v.shape[3]}), heads);
  t.k = run.joined(past_k, new_k, 1);
  t.v = run.joined(past_v, new_v, 2);
  if (bias.present()) t.bias = as_bias(bias);
  if (attributes_.causal) {
    const int64_t before = past_k.present() ? past_k.dims[2] : 0, last = q.dims[1] - 1;
    run.attend_until(before);
    if (new_k.shape[1] > q.dims[1]) {
      // The CPU provider masks nothing of the last query.
      run.options.causal = FULMEN_CAUSAL_NONE;
      run.mask_mod = "k - q <= " + std::to_string(before) + " | q == " + std::to_string(last);
      run.options.mask_mod = run.mask_mod.c_str();
    }
  }
  execute(run);
}

void Node::group_query_attention(Run& run) const {
  const Value q = run.input(0), k = run.input(1), v = run.input(2);
  const Value past_k = run.input(3), past_v = run.input(4), last = run.input(5);
  const Value total = run.input(6), cosines = run.input(7), sines = run.input(8);
  const Value bias = run.input(10);
  const int64_t heads = attributes_.q_heads, kv_heads = attributes_.kv_heads;
  const int64_t batch = q.dim(0), rows = q.dim(1);
  const bool packed = !k.present();
  const int64_t all_heads = packed ? heads + 2 * kv_heads : heads;
  if (q.dims.size() != 3 || q.dim(2) % all_heads != 0) fail("the query has no whole heads");
  const int64_t dim = q.dim(2) / all_heads;
  for (const Value* rows_of : {&k, &v})
    if (!packed && rows_of->dims != std::vector<int64_t>{batch, rows, kv_heads * dim})
      fail(std::string(rows_of == &k ? "the key" : "the value") + " is not [" +
           std::to_string(batch) + ", " + std::to_string(rows) + ", " +
           std::to_string(kv_heads * dim) + "] as the query and kv_num_heads say");
  if (total.dtype != FULMEN_INT32 ||
      std::any_of(total.dims.begin(), total.dims.end(), [](int64_t n) { return n != 1; }))
    fail("total_sequence_length is not one int32");
  const int64_t keys = *static_cast<const int32_t*>(total.data);

  fulmen_tensors& t = run.tensors;
  fulmen_tensor parts[3];  // q, k and v of the new rows
  int64_t skipped = 0;
  for (int i = 0; i < 3; ++i) {
    const int64_t own = i == 0 ? heads : kv_heads;
    const Value& from = packed || i == 0 ? q : i == 1 ? k : v;
    char* data = static_cast<char*>(from.data);
    if (packed) data += static_cast<std::size_t>(skipped * dim) * element_bytes(q.dtype);
    parts[i] = fulmen_tensor_bshd(data, q.dtype, batch, rows, own, dim);
    parts[i].strides[1] = packed ? q.dim(2) : own * dim;
    parts[i].strides[0] = rows * parts[i].strides[1];
    skipped += own;
  }
  t.out = as_heads(run.output(0, {batch, rows, heads * dim}), heads);

  // The cache, which may be the past's own memory.
  const int64_t before = past_k.present() ? as_past(past_k, parts[1]).shape[1] : 0;
  if (past_k.present() != past_v.present() || past_v.dim(2) != past_k.dim(2))
    fail("past_key and past_value differ in their rows");
  const int64_t room = std::max(before, keys);
  const auto cache_of = [&](const Value& past, std::size_t which) {
    const std::vector<int64_t> dims = {batch, kv_heads, room, dim};
    Value present = run.output(which, dims);
    if (!present.present()) present = run.in_memory(which, q.dtype, dims);
    const fulmen_tensor cache = as_heads(present, 0);
    if (before > 0 && past.data != present.data)
      copy_rows(as_past(past, parts[which]), before, cache, 0);
    return cache;
  };
  t.k = cache_of(past_k, 1);
  t.v = cache_of(past_v, 2);

  if (last.dtype != FULMEN_INT32 ||
      (last.dims.size() == 1 ? last.dim(0) : last.dim(0) * last.dim(1)) != batch)
    fail("seqlens_k is not int32 with a number for each sequence");
  const auto* ends = static_cast<const int32_t*>(last.data);
  std::vector<int32_t> used;
  for (int64_t b = 0; b < batch; ++b) {
    // A first prompt is padded at its end: row i is at position i. Later rows end at their lengths.
    const int64_t first = rows == keys ? 0 : int64_t{ends[b]} + 1 - rows;
    if (first < 0 || first + rows > room || ends[b] < 0 || ends[b] >= room)
      fail("seqlens_k is " + std::to_string(ends[b]) + " with " + std::to_string(rows) +
           " new rows and a cache of " + std::to_string(room));
    used.push_back(static_cast<int32_t>(first));
    // Without the causal mask nothing else keeps a prompt's rows from the padding behind its end.
    run.lengths.push_back(attributes_.causal ? static_cast<int32_t>(first + rows) : ends[b] + 1);
  }
  t.q = parts[0];
  fulmen_kv_cache append;
  fulmen_kv_cache_init(&append);
  append.k_cache = t.k;
  append.v_cache = t.v;
  append.k_new = parts[1];
  append.v_new = parts[2];
  append.parallel_for = parallel_for;
  append.seqlens_k = fulmen_tensor_1d(used.data(), FULMEN_INT32, batch);
  if (attributes_.rotary) {
    append.rotary_cos =
        fulmen_tensor_2d(cosines.data, cosines.dtype, cosines.dim(0), cosines.dim(1));
    append.rotary_sin = fulmen_tensor_2d(sines.data, sines.dtype, sines.dim(0), sines.dim(1));
    append.rotary_interleaved = attributes_.rotary_interleaved;
    run.q.resize(static_cast<std::size_t>(batch * rows * heads * dim) * element_bytes(q.dtype));
    append.q = parts[0];
    append.q_out = t.q = fulmen_tensor_bshd(run.q.data(), q.dtype, batch, rows, heads, dim);
  }
  if (fulmen_append_kv(&append, "cpu", nullptr) != FULMEN_OK) fail(fulmen_last_error());
  t.seqlens_k = fulmen_tensor_1d(run.lengths.data(), FULMEN_INT32, batch);
  if (bias.present()) {
    t.bias = as_bias(bias);
    if (t.bias.shape[3] != keys)
      fail("attention_bias has " + std::to_string(t.bias.shape[3]) +
           " columns, total_sequence_length is " + std::to_string(keys));
    t.k.shape[1] = t.v.shape[1] = t.bias.shape[3];
  }
  if (attributes_.causal) run.options.causal = FULMEN_CAUSAL_BOTTOM_RIGHT;
  if (attributes_.window > 0) run.options.window_left = attributes_.window - 1;
  execute(run);
}

void Node::compute(OrtKernelContext* context) const {
  Run run(context);
  switch (op_) {
    case Operator::attention:
      return attention(run);
    case Operator::multi_head_attention:
      return multi_head_attention(run);
    case Operator::group_query_attention:
      return group_query_attention(run);
  }
}

}  // namespace fulmen_ort

#include "run.h"

#include <cstring>

#include "numbers.h"

namespace fulmen_ort {
namespace {

// The context of the call that this thread is in: plans are kept, and a context is one run's.
thread_local const OrtKernelContext* running = nullptr;

void read(const OrtValue* from, Value& value) {
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
  value.dtype = dtype_of(type, value.name);
}

}  // namespace

void on_session_threads(void*, int64_t count, void (*task)(void*, int64_t), void* arg) {
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

Run::Run(OrtKernelContext* of) : context(of) {
  fulmen_tensors_init(&tensors);
  fulmen_options_init(&options);
  options.parallel_for = on_session_threads;
  running = of;
}

Run::~Run() { running = nullptr; }

Value Run::input(std::size_t index, const char* name) const {
  std::size_t count = 0;
  check(ort->KernelContext_GetInputCount(context, &count));
  Value value;
  value.name = name;
  const OrtValue* given = nullptr;
  if (index < count) check(ort->KernelContext_GetInput(context, index, &given));
  if (given != nullptr) read(given, value);
  return value;
}

Value Run::output(std::size_t index, const char* name, const std::vector<int64_t>& dims) const {
  std::size_t count = 0;
  check(ort->KernelContext_GetOutputCount(context, &count));
  Value value;
  value.name = name;
  OrtValue* made = nullptr;
  if (index < count)
    check(ort->KernelContext_GetOutput(context, index, dims.data(), dims.size(), &made));
  if (made != nullptr) read(made, value);
  return value;
}

void* Run::memory(int64_t bytes) {
  kept_.push_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes)));
  return kept_.back().get();
}

fulmen_tensor Run::joined(const Value& past, const Rows& fresh, std::size_t which) {
  const fulmen_tensor& rows = fresh.tensor;
  fulmen_tensor old{};
  if (past.present()) old = as_past(past, rows);
  const int64_t before = old.shape[1], all = before + rows.shape[1];
  Value present = output(which, which == 1 ? "present_key" : "present_value",
                         {rows.shape[0], rows.shape[2], all, rows.shape[3]});
  if (!present.present() && before == 0) return with_bias(fresh);
  if (!present.present()) {
    present.dtype = rows.dtype;
    present.dims = {rows.shape[0], rows.shape[2], all, rows.shape[3]};
    present.data = memory(present.elements() * static_cast<int64_t>(bytes_of(rows.dtype)));
  }
  const fulmen_tensor to = as_heads(present, 0);
  if (before > 0) copy_rows({old}, before, to, 0);
  copy_rows(fresh, rows.shape[1], to, before);
  return to;
}

fulmen_tensor Run::with_bias(const Rows& rows) {
  if (rows.bias == nullptr) return rows.tensor;
  const int64_t* s = rows.tensor.shape;
  void* data =
      memory(s[0] * s[1] * s[2] * s[3] * static_cast<int64_t>(bytes_of(rows.tensor.dtype)));
  const fulmen_tensor to = fulmen_tensor_bshd(data, rows.tensor.dtype, s[0], s[1], s[2], s[3]);
  copy_rows(rows, s[1], to, 0);
  return to;
}

void Run::attend_band(int64_t before, int64_t left, int64_t right) {
  if (left < 0 && right < 0) return;
  if (before == tensors.k.shape[1] - tensors.q.shape[1]) {
    options.window_left = left;
    options.window_right = right;
  } else if (before == 0 && left < 0 && right == 0) {
    options.causal = FULMEN_CAUSAL_TOP_LEFT;
  } else {
    // A diagonal of neither the first query nor the last one.
    if (right >= 0) mask_mod = "k - q <= " + std::to_string(before + right);
    if (left >= 0)
      mask_mod += (right >= 0 ? " & " : "") + ("k - q >= " + std::to_string(before - left));
    options.mask_mod = mask_mod.c_str();
  }
}

fulmen_tensor as_past(const Value& past, const fulmen_tensor& fresh) {
  const std::vector<int64_t>& d = past.dims;
  if (past.dtype != fresh.dtype || d.size() != 4 || d[0] != fresh.shape[0] ||
      d[1] != fresh.shape[2] || d[3] != fresh.shape[3])
    past.refuse("[" + std::to_string(fresh.shape[0]) + ", " + std::to_string(fresh.shape[2]) +
                ", any, " + std::to_string(fresh.shape[3]) + "] of the new rows' type");
  return as_heads(past, 0);
}

std::byte* row_of(const fulmen_tensor& t, int64_t b, int64_t s, int64_t h) {
  const int64_t at = b * t.strides[0] + s * t.strides[1] + h * t.strides[2];
  return static_cast<std::byte*>(t.data) + at * static_cast<int64_t>(bytes_of(t.dtype));
}

void copy_rows(const Rows& rows, int64_t count, const fulmen_tensor& to, int64_t from) {
  const fulmen_tensor& t = rows.tensor;
  const int64_t heads = t.shape[2], dim = t.shape[3];
  const int64_t bytes = dim * static_cast<int64_t>(bytes_of(t.dtype));
  in_parallel(t.shape[0] * heads, t.shape[0] * heads * count * bytes, [&](int64_t index) {
    const int64_t b = index / heads, h = index % heads;
    std::vector<float> bias, sum;
    if (rows.bias != nullptr) {
      bias.resize(static_cast<std::size_t>(dim));
      sum.resize(static_cast<std::size_t>(dim));
      widen(static_cast<const std::byte*>(rows.bias) + h * bytes, t.dtype, dim, bias.data());
    }
    for (int64_t s = 0; s < count; ++s) {
      std::byte* at = row_of(to, b, from + s, h);
      if (rows.bias == nullptr) {
        std::memcpy(at, row_of(t, b, s, h), static_cast<std::size_t>(bytes));
        continue;
      }
      widen(row_of(t, b, s, h), t.dtype, dim, sum.data());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += bias[i];
      narrow(sum.data(), t.dtype, dim, at);
    }
  });
}

}  // namespace fulmen_ort

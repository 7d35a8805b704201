// torch.ops.fulmen.attention and attention_varlen, forward, for processes without Python: programs
// of AOTInductor, torch::jit, anything that calls operators by name. Load the library before the
// program. In Python, fulmen.torch has these operators, and this library must stay away.
#include <ATen/ops/empty.h>
#include <dlfcn.h>
#include <fulmen/fulmen_c.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace {

using torch::jit::IValue;
using torch::jit::Stack;

// As bindings/python/fulmen/torch/_ops.py has them.
#define FULMEN_ARGUMENTS                                                                       \
  "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? keep_mask, Tensor? alibi_slopes, "      \
  "Tensor? sinks, Tensor? rng, float? softmax_scale, float softcap, str causal, "              \
  "SymInt window_left, SymInt window_right, float dropout, bool? deterministic, str? kernel, " \
  "str? tuning, int num_threads, bool verify, str? device"
#define FULMEN_LENGTHS                                                                   \
  ", Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqlens_k, Tensor? leftpad_k, " \
  "Tensor? block_table, Tensor? k_scale, Tensor? v_scale, Tensor? q_scale, "             \
  "SymInt? max_seqlen_q, SymInt? max_seqlen_k, bool validate"
#define FULMEN_RESULTS ", bool need_lse) -> (Tensor out, Tensor lse)"

// An operator's arguments by name; None where it has no such argument.
class Arguments {
 public:
  Arguments(const c10::FunctionSchema& schema, const Stack& stack)
      : schema_(schema), first_(&stack[stack.size() - schema.arguments().size()]) {}

  const IValue& operator[](std::string_view name) const {
    static const IValue none;
    const auto& all = schema_.arguments();
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name() == name; });
    return found == all.end() ? none : first_[found - all.begin()];
  }
  at::Tensor tensor(std::string_view name) const {
    const IValue& value = (*this)[name];
    return value.isNone() ? at::Tensor() : value.toTensor();
  }
  std::string text(std::string_view name) const {
    const IValue& value = (*this)[name];
    return value.isNone() ? std::string() : value.toStringRef();
  }
  int64_t integer(std::string_view name, int64_t otherwise) const {
    const IValue& value = (*this)[name];
    return value.isNone() ? otherwise : value.toInt();
  }
  bool flag(std::string_view name, bool otherwise) const {
    const IValue& value = (*this)[name];
    return value.isNone() ? otherwise : value.toBool();
  }

 private:
  const c10::FunctionSchema& schema_;
  const IValue* first_;
};

fulmen_dtype dtype_of(const char* name, const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return FULMEN_FP32;
    case at::kHalf:
      return FULMEN_FP16;
    case at::kBFloat16:
      return FULMEN_BF16;
    case at::kBool:
    case at::kByte:
      return FULMEN_BOOLEAN;
    case at::kInt:
      return FULMEN_INT32;
    default:
      TORCH_CHECK_VALUE(false, name, " has dtype ", t.scalar_type(),
                        ": float32, float16, bfloat16, bool and int32 are accepted");
  }
}

// first: which of the C ABI's four dims is the tensor's first.
fulmen_tensor view(const char* name, const at::Tensor& t, int64_t first) {
  TORCH_CHECK_VALUE(t.dim() + first <= 4, name, " has ", t.dim(), " dims: at most ", 4 - first,
                    " are accepted");
  fulmen_tensor made = fulmen_tensor_1d(t.data_ptr(), dtype_of(name, t), 1);
  for (int64_t d = 0; d < t.dim(); ++d) {
    made.shape[first + d] = t.size(d);
    made.strides[first + d] = t.stride(d);
  }
  if (made.shape[3] == 1 || t.numel() == 0) made.strides[3] = 1;
  return made;
}

// Few numbers of each head, or of each sequence and head.
fulmen_tensor of_heads(const char* name, const at::Tensor& t) {
  if (t.dim() != 2) return view(name, t, 3);
  fulmen_tensor made = view(name, t[0], 3);
  made.data = t.data_ptr();
  made.shape[0] = t.size(0), made.strides[0] = t.stride(0);
  return made;
}

// [1], [kv_heads], [batch, kv_heads], or the dims of k.
fulmen_tensor of_scales(const char* name, const at::Tensor& t) {
  if (t.dim() > 2) return view(name, t, t.dim() == 4 ? 0 : 1);
  fulmen_tensor made = of_heads(name, t);
  std::swap(made.shape[2], made.shape[3]);
  std::swap(made.strides[2], made.strides[3]);
  made.strides[3] = 1;
  return made;
}

void check(int status) { TORCH_CHECK(status == FULMEN_OK, "fulmen: ", fulmen_last_error()); }

// libtorch_cuda's and libtorch_hip's, which is asked without their headers.
void* current_stream(int64_t device) {
  using Function = int32_t(int32_t device, void** stream);
  static auto* const ask =
      reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, "aoti_torch_get_current_cuda_stream"));
  void* stream = nullptr;
  TORCH_CHECK(ask != nullptr && ask(static_cast<int32_t>(device), &stream) == 0,
              "fulmen: this libtorch does not tell its current stream");
  return stream;
}

std::string fulmen_device(const at::Tensor& q) {
  if (q.device().is_cpu()) return "cpu";
  const bool hip = ::dlsym(RTLD_DEFAULT, "hipGetDeviceCount") != nullptr;
  return (hip ? "hip:" : "cuda:") + std::to_string(q.device().index());
}

fulmen_options options_of(const Arguments& given, const std::string& kernel,
                          const std::string& tuning) {
  fulmen_options options;
  fulmen_options_init(&options);
  if (const IValue& scale = given["softmax_scale"]; !scale.isNone())
    options.softmax_scale = static_cast<float>(scale.toDouble());
  options.softcap = static_cast<float>(given["softcap"].toDouble());
  options.dropout = static_cast<float>(given["dropout"].toDouble());
  const std::string causal = given.text("causal");
  options.causal = causal == "top_left" ? 2 : causal == "bottom_right" ? 1 : 0;
  options.window_left = given.integer("window_left", -1);
  options.window_right = given.integer("window_right", -1);
  options.deterministic = given.flag("deterministic", options.deterministic);
  options.kernel = kernel.c_str();
  options.tuning = tuning.c_str();
  options.num_threads = static_cast<int32_t>(given.integer("num_threads", 0));
  options.verify = given.flag("verify", false);
  options.validate = given.flag("validate", false);
  options.max_seqlen_q = given.integer("max_seqlen_q", options.max_seqlen_q);
  options.max_seqlen_k = given.integer("max_seqlen_k", options.max_seqlen_k);
  return options;
}

std::tuple<at::Tensor, at::Tensor> attention(const Arguments& given) {
  const at::Tensor q = given.tensor("q"), k = given.tensor("k"), v = given.tensor("v");
  const bool packed_q = !given["cu_seqlens_q"].isNone();
  const bool packed_k = !given["cu_seqlens_k"].isNone() && given["block_table"].isNone();
  TORCH_CHECK_VALUE(q.dim() == (packed_q ? 3 : 4), "q has ", q.dim(), " dims");

  auto out_shape = q.sizes().vec();
  out_shape.back() = v.size(-1);
  const at::Tensor out = at::empty(out_shape, q.options());
  auto lse_shape = q.sizes().slice(0, q.dim() - 1).vec();
  std::swap(lse_shape[lse_shape.size() - 1], lse_shape[lse_shape.size() - 2]);
  const bool need_lse = given.flag("need_lse", false);
  if (!need_lse) lse_shape = {0};
  const at::Tensor lse = at::empty(lse_shape, q.options().dtype(at::kFloat));

  fulmen_tensors tensors;
  fulmen_tensors_init(&tensors);
  tensors.q = view("q", q, packed_q), tensors.out = view("out", out, packed_q);
  tensors.k = view("k", k, packed_k), tensors.v = view("v", v, packed_k);
  if (need_lse) tensors.lse = view("lse", lse, packed_q);
  const auto add = [&](const char* name, fulmen_tensor& to, const auto& place) {
    if (const at::Tensor t = given.tensor(name); t.defined()) to = place(name, t);
  };
  const auto at_the_end = [](const char* name, const at::Tensor& t) {
    return view(name, t, 4 - t.dim());
  };
  add("bias", tensors.bias, at_the_end), add("keep_mask", tensors.keep_mask, at_the_end);
  add("alibi_slopes", tensors.alibi_slopes, of_heads), add("sinks", tensors.sinks, of_heads);
  add("cu_seqlens_q", tensors.cu_seqlens_q, at_the_end);
  add("cu_seqlens_k", tensors.cu_seqlens_k, at_the_end);
  add("seqlens_k", tensors.seqlens_k, at_the_end);
  add("leftpad_k", tensors.leftpad_k, at_the_end);
  add("block_table", tensors.block_table, at_the_end);
  add("k_scale", tensors.k_scale, of_scales), add("v_scale", tensors.v_scale, of_scales);
  add("q_scale", tensors.q_scale, of_scales);
  if (const at::Tensor rng = given.tensor("rng"); rng.defined()) {
    const at::Tensor host = rng.cpu().contiguous();
    std::memcpy(&tensors.dropout_seed, host.data_ptr<int64_t>(), sizeof(uint64_t));
    std::memcpy(&tensors.dropout_offset, host.data_ptr<int64_t>() + 1, sizeof(uint64_t));
  }

  const std::string kernel = given.text("kernel"), tuning = given.text("tuning");
  const fulmen_options options = options_of(given, kernel, tuning);
  const std::string named = given.text("device"), device = named.empty() ? fulmen_device(q) : named;
  void* stream = q.device().is_cpu() ? nullptr : current_stream(q.device().index());
  fulmen_plan* made = nullptr;
  check(fulmen_plan_create(&tensors, &options, device.c_str(), &made));
  const std::unique_ptr<fulmen_plan, void (*)(fulmen_plan*)> plan(made, fulmen_plan_destroy);
  const size_t bytes = fulmen_plan_workspace_bytes(made);
  const at::Tensor workspace =
      at::empty({static_cast<int64_t>(bytes)}, q.options().dtype(at::kByte));
  check(
      fulmen_plan_run(made, stream, &tensors, bytes == 0 ? nullptr : workspace.data_ptr(), bytes));
  if (packed_q || packed_k)
    check(fulmen_zero_unused_rows(&tensors, &options, device.c_str(), stream));
  return {out, lse};
}

void run(const c10::OperatorHandle& op, Stack* stack) {
  auto [out, lse] = attention(Arguments(op.schema(), *stack));
  torch::jit::drop(*stack, op.schema().arguments().size());
  torch::jit::push(*stack, std::move(out), std::move(lse));
}

}  // namespace

TORCH_LIBRARY(fulmen, library) {
  const std::vector<at::Tag> tags = {at::Tag::needs_fixed_stride_order};
  library.def("attention(" FULMEN_ARGUMENTS FULMEN_RESULTS, tags);
  library.def("attention_varlen(" FULMEN_ARGUMENTS FULMEN_LENGTHS FULMEN_RESULTS, tags);
  for (const char* name : {"attention", "attention_varlen"}) {
    for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA})
      library.impl(name, torch::dispatch(key, torch::CppFunction::makeFromBoxedFunction<&run>()));
  }
}

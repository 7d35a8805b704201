#include "api/c/translation.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <new>

namespace fulmen::c_api {

namespace {

// A string a thread. The main thread's objects are destroyed before static destructors and atexit
// functions run, which may call, too: such a late call makes the string again, and that one stays.
struct ThreadString {
  alignas(std::string) std::byte memory[sizeof(std::string)];
  bool alive;
  std::string* get() noexcept { return std::launder(reinterpret_cast<std::string*>(memory)); }
};

// owner: an object of the thread, which destroys the string with it.
template <class Owner>
std::string& string_of(ThreadString& string, const Owner& owner) noexcept {
  if (!string.alive) {
    new (string.memory) std::string;
    string.alive = true;
    owner();
  }
  return *string.get();
}

struct Destroyer {
  ThreadString& string;
  ~Destroyer() {
    if (string.alive) std::destroy_at(string.get());
    string.alive = false;
  }
};

}  // namespace

std::string& last_error() noexcept {
  // Has no destructor of its own: it can be looked at until the very end.
  thread_local ThreadString text{};
  return string_of(text, [] { thread_local const Destroyer kOwner{text}; });
}

std::string& given_text() noexcept {
  thread_local ThreadString text{};
  return string_of(text, [] { thread_local const Destroyer kOwner{text}; });
}

int fail(const Status& status) noexcept {
  try {
    last_error() = status.message();
  } catch (...) {
    last_error() = "out of memory";  // short enough to need none
  }
  return static_cast<int>(status.code());
}

Status null_argument(const char* name) {
  return {StatusCode::invalid_argument, fmt::format("{} is null: a pointer is needed", name)};
}

fulmen_tensor to_c(const Tensor& t) noexcept {
  fulmen_tensor tensor{t.data, static_cast<int32_t>(t.dtype), {}, {}, {}};
  std::copy_n(t.shape.begin(), 4, tensor.shape);
  std::copy_n(t.strides.begin(), 4, tensor.strides);
  return tensor;
}

Tensor to_cpp(const fulmen_tensor& view) noexcept {
  Tensor tensor{view.data, static_cast<DType>(view.dtype)};
  std::copy_n(view.shape, 4, tensor.shape.begin());
  std::copy_n(view.strides, 4, tensor.strides.begin());
  return tensor;
}

Status check_reserved(const char* name, const fulmen_tensor& view) {
  for (const uint64_t& word : view.reserved) {
    if (word == 0) continue;
    return {StatusCode::invalid_argument,
            fmt::format("{}.reserved[{}] is {}: 0 is accepted; begin a fulmen_tensor with zeros or "
                        "a fulmen_tensor_ function",
                        name, &word - view.reserved, word)};
  }
  return {};
}

namespace {

// The caller's array, whose elements may be larger or smaller than this library's.
Status take_functions(const fulmen_tensors& from, OwnedTensors& to) {
  constexpr int64_t kMost = 32;
  const int64_t count = from.num_function_tensors;
  if (count == 0) return {};
  if (count < 0 || count > kMost) {
    return {StatusCode::invalid_argument,
            fmt::format("num_function_tensors is {}: 0 to {} are accepted", count, kMost)};
  }
  if (from.function_tensors == nullptr) return null_argument("function_tensors");
  const std::size_t size = from.function_tensors->struct_size;
  if (Status status = check_struct_size<fulmen_function_tensor>("function_tensors[0]", size);
      !status.ok())
    return status;
  auto list = std::make_unique<FunctionTensor[]>(static_cast<std::size_t>(count));
  const auto* bytes = reinterpret_cast<const unsigned char*>(from.function_tensors);
  for (int64_t i = 0; i < count; ++i, bytes += size) {
    const auto* given = reinterpret_cast<const fulmen_function_tensor*>(bytes);
    const std::string name = fmt::format("function_tensors[{}]", i);
    fulmen_function_tensor one{};
    if (given->struct_size != size) {
      return {StatusCode::invalid_argument,
              fmt::format("{}.struct_size is {}, that of the first is {}: they must agree", name,
                          given->struct_size, size)};
    }
    if (Status status = read_struct(name.c_str(), given, one); !status.ok()) return status;
    if (one.name == nullptr) return null_argument((name + ".name").c_str());
    for (const fulmen_tensor* view : {&one.tensor, &one.gradient}) {
      if (Status status = check_reserved(name.c_str(), *view); !status.ok()) return status;
    }
    list[static_cast<std::size_t>(i)] = {one.name, one.dims, to_cpp(one.tensor),
                                         to_cpp(one.gradient)};
  }
  to.function_tensors = {list.get(), static_cast<std::size_t>(count)};
  to.functions = std::move(list);
  return {};
}

}  // namespace

Result<OwnedTensors> to_cpp(const fulmen_tensors* from) {
  if (from == nullptr) return null_argument("tensors");
  fulmen_tensors completed;
  // Nearly always: 2 KiB need not move twice a call.
  const bool complete = from->struct_size == sizeof completed;
  if (!complete) {
    fulmen_tensors_init(&completed);
    if (Status status = read_struct("tensors", from, completed); !status.ok()) return status;
  }
  const fulmen_tensors& t = complete ? *from : completed;
  OwnedTensors tensors;
  for (int i = 0; i < kTensorFields; ++i) {
    const fulmen_tensor& view = t.*kCTensors[i].tensor;
    if (Status status = check_reserved(kTensorTable[i].name, view); !status.ok()) return status;
    static_cast<AttentionTensors&>(tensors)->*kTensorTable[i].tensor = to_cpp(view);
  }
  if (Status status = take_functions(t, tensors); !status.ok()) return status;
  tensors.dropout_seed = t.dropout_seed;
  tensors.dropout_offset = t.dropout_offset;
  return tensors;
}

Result<AttentionOptions> to_cpp(const fulmen_options* from) {
  AttentionOptions options;
  if (from == nullptr) return options;
  fulmen_options o;
  fulmen_options_init(&o);
  if (Status status = read_struct("options", from, o); !status.ok()) return status;
  if (o.softmax_scale == 0 && o.window_left == 0 && o.window_right == 0 && o.max_seqlen_q == 0 &&
      o.max_seqlen_k == 0) {
    return Status(StatusCode::invalid_argument,
                  "options.softmax_scale, window_left, window_right, max_seqlen_q and max_seqlen_k "
                  "are 0: a zeroed struct is not the "
                  "defaults, fulmen_options_init() sets them");
  }
  if (!std::isnan(o.softmax_scale)) options.softmax_scale = o.softmax_scale;
  options.softcap = o.softcap;
  options.causal = static_cast<Causal>(o.causal);
  options.window_left = o.window_left;
  options.window_right = o.window_right;
  options.dropout = o.dropout;
  options.deterministic = o.deterministic;
  options.max_seqlen_q = o.max_seqlen_q;
  options.max_seqlen_k = o.max_seqlen_k;
  if (o.kernel != nullptr) options.kernel = o.kernel;
  if (o.tuning != nullptr) options.tuning = o.tuning;
  options.num_threads = o.num_threads;
  options.verify = o.verify;
  options.validate = o.validate;
  options.vary_batch = o.vary_batch;
  options.vary_seqlen_k = o.vary_seqlen_k;
  options.trust_pointers = o.trust_pointers;
  options.check_first_use = o.check_first_use;
  if (o.score_mod != nullptr) options.score_mod = o.score_mod;
  if (o.mask_mod != nullptr) options.mask_mod = o.mask_mod;
  options.mask_block_q = o.mask_block_q;
  options.mask_block_k = o.mask_block_k;
  options.precision = static_cast<Precision>(o.precision);
  options.parallel_for = {o.parallel_for, o.parallel_for_context};
  return options;
}

Result<RunOptions> to_cpp(const fulmen_run_options* from) {
  RunOptions options;
  if (from == nullptr) return options;
  fulmen_run_options o;
  fulmen_run_options_init(&o);
  if (Status status = read_struct("options", from, o); !status.ok()) return status;
  if (!std::isnan(o.softmax_scale)) options.softmax_scale = o.softmax_scale;
  if (!std::isnan(o.softcap)) options.softcap = o.softcap;
  if (o.window_left != FULMEN_AS_PLANNED) options.window_left = o.window_left;
  if (o.window_right != FULMEN_AS_PLANNED) options.window_right = o.window_right;
  return options;
}

Result<Call> to_cpp(Pass pass, const fulmen_tensors* tensors, const fulmen_options* options,
                    const char* device) {
  auto t = to_cpp(tensors);
  if (!t.ok()) return t.status();
  auto o = to_cpp(options);
  if (!o.ok()) return o.status();
  auto problem = pass == Pass::forward ? make_problem(t.value(), o.value())
                                       : make_backward_problem(t.value(), o.value());
  if (!problem.ok()) return problem.status();
  return Call{t.value(), std::move(o).value(), device != nullptr ? device : "", problem.value()};
}

}  // namespace fulmen::c_api

extern "C" {

void fulmen_tensors_init_sized(fulmen_tensors* tensors, size_t struct_size) {
  fulmen::c_api::init_struct(fulmen_tensors{}, tensors, struct_size);
}

void fulmen_options_init_sized(fulmen_options* options, size_t struct_size) {
  fulmen_options defaults{};
  defaults.softmax_scale = std::numeric_limits<float>::quiet_NaN();
  defaults.window_left = -1;
  defaults.window_right = -1;
  defaults.deterministic = true;
  defaults.max_seqlen_q = -1;
  defaults.max_seqlen_k = -1;
  defaults.check_first_use = true;
  defaults.mask_block_q = 128;
  defaults.mask_block_k = 128;
  fulmen::c_api::init_struct(defaults, options, struct_size);
}

void fulmen_run_options_init_sized(fulmen_run_options* options, size_t struct_size) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  const fulmen_run_options defaults{0, kNone, kNone, FULMEN_AS_PLANNED, FULMEN_AS_PLANNED};
  fulmen::c_api::init_struct(defaults, options, struct_size);
}

const char* fulmen_version(void) { return fulmen::version(); }
const char* fulmen_last_error(void) { return fulmen::c_api::last_error().c_str(); }
const char* fulmen_status_name(int status) {
  return fulmen::to_string(static_cast<fulmen::StatusCode>(status));
}

}  // extern "C"

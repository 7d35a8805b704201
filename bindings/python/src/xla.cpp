#include "xla.h"

#include <algorithm>
#include <cfenv>
#include <cstring>
#include <exception>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "call.h"
#include "run.h"

namespace fulmen::python::xla {
namespace {

Error* fail(const CallFrame& frame, int status, const char* message) {
  ErrorCode code = ErrorCode::internal;
  if (status == FULMEN_INVALID_ARGUMENT) code = ErrorCode::invalid_argument;
  if (status == FULMEN_UNSUPPORTED) code = ErrorCode::unimplemented;
  if (status == FULMEN_UNAVAILABLE) code = ErrorCode::unavailable;
  if (status == FULMEN_OUT_OF_MEMORY) code = ErrorCode::resource_exhausted;
  CreateErrorArguments arguments{offsetof(CreateErrorArguments, code) + sizeof(ErrorCode), nullptr, message, code};
  return frame.api->create_error(&arguments);
}

// Whether XLA only asks what the handler was written for.
bool describe(const CallFrame& frame) {
  if (frame.extensions == nullptr || frame.extensions->type != MetadataExtension::kType) return false;
  Metadata& metadata = *reinterpret_cast<MetadataExtension*>(frame.extensions)->metadata;
  // What is read here has been the same in every 0.x, and struct sizes are checked, so XLA's own minor version will do.
  metadata.version.major = 0;
  metadata.version.minor = frame.api != nullptr ? frame.api->version.minor : 1;
  metadata.traits = 0;
  return true;
}

fulmen_dtype dtype_of(DataType dtype) {
  switch (dtype) {
    case DataType::fp16:
      return FULMEN_FP16;
    case DataType::bf16:
      return FULMEN_BF16;
    case DataType::boolean:
      return FULMEN_BOOLEAN;
    case DataType::int32:
      return FULMEN_INT32;
    default:  // another would have been refused when the call was traced
      return FULMEN_FP32;
  }
}

int64_t bytes_of(DataType dtype) {
  if (dtype == DataType::boolean) return 1;
  return dtype == DataType::fp16 || dtype == DataType::bf16 ? 2 : 4;
}

template <class T>
T number(const Attributes& attributes, std::string_view name, DataType dtype, T otherwise) {
  const auto* scalar = static_cast<const Scalar*>(attributes.find(name, AttributeType::scalar));
  if (scalar == nullptr || scalar->dtype != dtype) return otherwise;
  std::memcpy(&otherwise, scalar->value, sizeof otherwise);
  return otherwise;
}

std::string text(const Attributes& attributes, std::string_view name) {
  const auto* found = static_cast<const Text*>(attributes.find(name, AttributeType::string));
  return found == nullptr ? std::string() : std::string(found->data, found->size);
}

// Dims in front of those of one call, and where in a buffer a call's part is.
struct Mapped {
  const Buffer* buffer;
  int64_t bytes;  // of one call's part

  Mapped(const Buffer& b, int leading) : buffer(&b), bytes(bytes_of(b.dtype)) {
    for (int64_t d = leading; d < b.rank; ++d) bytes *= b.dims[d];
  }
  // The n-th of all calls, row-major over sizes.
  char* part(int64_t n, const std::vector<int64_t>& sizes) const {
    int64_t at = 0, pitch = 1;
    for (auto d = static_cast<int64_t>(sizes.size()); d-- > 0; n /= sizes[d]) {
      if (buffer->dims[d] > 1) at += n % sizes[d] * pitch;
      pitch *= buffer->dims[d];
    }
    return static_cast<char*>(buffer->data) + at * bytes;
  }
};

struct Operand {
  fulmen_tensor* tensor;
  Mapped mapped;
};

class Execution {
 public:
  explicit Execution(const CallFrame& frame) {
    const Attributes& attributes = frame.attributes;
    fulmen_tensors_init(&tensors_);
    read_options(attributes);
    const auto read = [&](const char* name) { return number<int64_t>(attributes, name, DataType::int64, 0); };
    const int64_t given = read("arguments");
    const auto present = [given](Place place) { return (given >> place & 1) != 0; };
    const Layout layout{read("bhsd") != 0, present(kCuSeqlensQ), present(kCuSeqlensK) && !present(kBlockTable)};
    const Buffers &arguments = frame.arguments, &results = frame.results;
    const int leading = static_cast<int>(arguments.buffers[0]->rank) - (layout.packed_q ? 3 : 4);
    sizes_.assign(results.buffers[0]->dims, results.buffers[0]->dims + leading);
    const int64_t used = place(arguments, given, leading, layout);
    place(results, read("results"), leading, layout);
    if (used < arguments.size) random_ = std::make_unique<Mapped>(*arguments.buffers[used], leading);
  }

  int run(Pass pass) {
    const auto create = pass == Pass::forward ? fulmen_plan_create : fulmen_plan_create_backward;
    fulmen_plan* made = nullptr;
    if (const int status = create(&tensors_, &options_, device_.empty() ? nullptr : device_.c_str(), &made); status != FULMEN_OK) {
      return status;
    }
    const std::unique_ptr<fulmen_plan, void (*)(fulmen_plan*)> plan(made, fulmen_plan_destroy);
    const size_t bytes = fulmen_plan_workspace_bytes(made);
    void* workspace = host_workspace(bytes);
    int64_t calls = 1;
    for (const int64_t size : sizes_) calls *= size;
    for (int64_t n = 0; n < calls; ++n) {
      for (const Operand& operand : operands_) operand.tensor->data = operand.mapped.part(n, sizes_);
      if (random_) {
        uint64_t seed_and_offset[2];  // low halves come first, as on every processor that XLA knows
        std::memcpy(seed_and_offset, random_->part(n, sizes_), sizeof seed_and_offset);
        tensors_.dropout_seed = seed_and_offset[0], tensors_.dropout_offset = seed_and_offset[1];
      }
      const int status = fulmen_plan_run(made, nullptr, &tensors_, workspace, workspace != nullptr ? bytes : 0);
      if (status != FULMEN_OK) return status;
    }
    return FULMEN_OK;
  }

 private:
  void read_options(const Attributes& attributes) {
    const auto integer = [&](const char* name, int64_t otherwise) {
      return number<int64_t>(attributes, name, DataType::int64, otherwise);
    };
    fulmen_options_init(&options_);
    options_.softmax_scale = number(attributes, "softmax_scale", DataType::fp32, options_.softmax_scale);
    options_.softcap = number(attributes, "softcap", DataType::fp32, options_.softcap);
    options_.dropout = number(attributes, "dropout", DataType::fp32, options_.dropout);
    options_.causal = static_cast<int32_t>(integer("causal", options_.causal));
    options_.window_left = integer("window_left", options_.window_left);
    options_.window_right = integer("window_right", options_.window_right);
    options_.max_seqlen_q = integer("max_seqlen_q", options_.max_seqlen_q);
    options_.max_seqlen_k = integer("max_seqlen_k", options_.max_seqlen_k);
    options_.deterministic = integer("deterministic", 0) != 0;
    options_.num_threads = static_cast<int32_t>(integer("num_threads", 0));
    options_.verify = integer("verify", 0) != 0;
    kernel_ = text(attributes, "kernel");
    options_.kernel = kernel_.c_str();
    device_ = text(attributes, "device");
  }

  // Returns how many of the buffers have a place.
  int64_t place(const Buffers& buffers, int64_t places, int leading, const Layout& layout) {
    int64_t next = 0;
    for (int at = 0; at < kPlaces; ++at) {
      if ((places >> at & 1) == 0) continue;
      const Buffer& buffer = *buffers.buffers[next++];
      View view;
      view.data = buffer.data;
      view.dtype = dtype_of(buffer.dtype);
      view.ndim = static_cast<int>(buffer.rank) - leading;
      std::copy_n(buffer.dims + leading, view.ndim, view.shape);
      int64_t stride = 1;
      for (int d = view.ndim; d-- > 0; stride *= std::max<int64_t>(view.shape[d], 1)) view.strides[d] = stride;
      fulmen_tensor& tensor = tensors_.*kMembers[at];
      tensor = placed(static_cast<Place>(at), view, layout);
      operands_.push_back({&tensor, Mapped(buffer, leading)});
    }
    return next;
  }

  fulmen_tensors tensors_;
  fulmen_options options_;
  std::string kernel_, device_;
  std::vector<int64_t> sizes_;  // of the dims in front
  std::vector<Operand> operands_;
  std::unique_ptr<Mapped> random_;
};

// XLA computes with denormal numbers taken for 0, which is a state of its thread. Attention does not; and a pool's threads, which a
// call may start, keep for good what their creator had.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { std::fesetenv(&saved_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  std::fenv_t saved_;
};

Error* call(Pass pass, CallFrame* frame) {
  if (describe(*frame)) return nullptr;
  if (!frame->readable()) return fail(*frame, FULMEN_UNSUPPORTED, "fulmen: this XLA calls handlers in an older way; update jaxlib");
  if (frame->stage != Stage::execute) return nullptr;
  const DefaultArithmetic arithmetic;
  try {
    const int status = Execution(*frame).run(pass);
    return status == FULMEN_OK ? nullptr : fail(*frame, status, fulmen_last_error());
  } catch (const std::exception& error) {
    return fail(*frame, FULMEN_INTERNAL, error.what());
  }
}

}  // namespace

Error* forward(CallFrame* frame) { return call(Pass::forward, frame); }
Error* backward(CallFrame* frame) { return call(Pass::backward, frame); }

}  // namespace fulmen::python::xla

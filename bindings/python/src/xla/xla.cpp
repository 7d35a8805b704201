#include "xla/xla.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "arguments/call.h"
#include "run/plan_cache.h"
#include "run/run.h"
#include "xla/xla_frame.h"
#include "xla/xla_functions.h"
#include "xla/xla_gpu.h"

namespace fulmen::python::xla {
namespace {

struct Operand {
  Place place;
  fulmen_tensor* tensor;
  Mapped mapped;
};

class Execution {
 public:
  explicit Execution(const CallFrame& frame) : frame_(frame) {
    const Attributes& attributes = frame.attributes;
    fulmen_tensors_init(&tensors_);
    read_options(attributes);
    const auto read = [&](const char* name) {
      return number<int64_t>(attributes, name, DataType::int64, 0);
    };
    const int64_t given = read("arguments");
    const auto present = [given](Place place) { return (given >> place & 1) != 0; };
    const Layout layout{read("bhsd") != 0, present(kCuSeqlensQ),
                        present(kCuSeqlensK) && !present(kBlockTable)};
    packed_ = layout.packed_q || layout.packed_k;
    const Buffers &arguments = frame.arguments, &results = frame.results;
    const int leading = static_cast<int>(arguments.buffers[0]->rank) - (layout.packed_q ? 3 : 4);
    sizes_.assign(results.buffers[0]->dims, results.buffers[0]->dims + leading);
    const int64_t used = place(arguments, given, leading, layout);
    const int64_t given_results = place(results, read("results"), leading, layout);
    if (Functions::are_in(attributes)) {
      functions_ = std::make_unique<Functions>(frame, used, given_results);
      functions_->add_to(tensors_, options_);
    } else if (used < arguments.size)
      random_ = std::make_unique<Mapped>(*arguments.buffers[used], leading);
    if (can_fold()) fold();
  }

  int run(Pass pass, Platform platform) {
    return platform == Platform::host ? run_on_host(pass) : run_on_gpu(pass, platform);
  }

 private:
  int run_on_host(Pass pass) {
    const auto create = pass == Pass::forward ? fulmen_plan_create : fulmen_plan_create_backward;
    fulmen_plan* made = nullptr;
    if (const int status =
            create(&tensors_, &options_, device_.empty() ? nullptr : device_.c_str(), &made);
        status != FULMEN_OK) {
      return status;
    }
    const std::unique_ptr<fulmen_plan, void (*)(fulmen_plan*)> plan(made, fulmen_plan_destroy);
    const auto* seeds = random_ ? static_cast<const char*>(random_->buffer->data) : nullptr;
    return for_each_call(seeds, [&] {
      if (const int status = python::run_on_host(pass, made, tensors_, options_);
          status != FULMEN_OK)
        return status;
      return packed_ ? zero_unused_rows_on_host(pass, tensors_, options_) : FULMEN_OK;
    });
  }

  int run_on_gpu(Pass pass, Platform platform) {
    Gpu gpu(frame_, platform == Platform::cuda ? "cuda" : "hip", device_);
    options_.trust_pointers = true;  // XLA answers for the device of its memory
    int status = FULMEN_OK;
    const SharedPlan plan =
        find_or_make_plan({pass, tensors_, places_, options_, gpu.name()}, false, status);
    if (status != FULMEN_OK) return status;
    std::vector<char> seeds;
    if (random_) {
      seeds.resize(random_->bytes_of_all());
      status = fulmen_device_copy(gpu.name(), seeds.data(), random_->buffer->data, seeds.size());
      if (status != FULMEN_OK) return status;
    }
    const size_t bytes = fulmen_plan_workspace_bytes(plan.get());
    void* workspace = gpu.allocate(bytes);  // of one call after another in the stream
    return for_each_call(seeds.data(), [&] {
      if (const int ran = fulmen_plan_run(plan.get(), gpu.stream(), &tensors_, workspace, bytes);
          ran != FULMEN_OK)
        return ran;
      if (!packed_) return static_cast<int>(FULMEN_OK);
      const auto zero =
          pass == Pass::forward ? fulmen_zero_unused_rows : fulmen_zero_unused_rows_backward;
      return zero(&tensors_, &options_, gpu.name(), gpu.stream());
    });
  }

  // seeds: the buffer of seeds and offsets, on the host.
  template <class Call>
  int for_each_call(const char* seeds, const Call& call) {
    int64_t calls = 1;
    for (const int64_t size : sizes_) calls *= size;
    for (int64_t n = 0; n < calls; ++n) {
      for (const Operand& operand : operands_)
        operand.tensor->data = operand.mapped.part(n, sizes_);
      if (random_) {
        uint64_t seed_and_offset[2];  // low halves come first, as on every processor that XLA knows
        std::memcpy(seed_and_offset, seeds + random_->offset(n, sizes_), sizeof seed_and_offset);
        tensors_.dropout_seed = seed_and_offset[0], tensors_.dropout_offset = seed_and_offset[1];
      }
      if (const int status = call(); status != FULMEN_OK) return status;
    }
    return FULMEN_OK;
  }

  void read_options(const Attributes& attributes) {
    const auto integer = [&](const char* name, int64_t otherwise) {
      return number<int64_t>(attributes, name, DataType::int64, otherwise);
    };
    fulmen_options_init(&options_);
    options_.softmax_scale =
        number(attributes, "softmax_scale", DataType::fp32, options_.softmax_scale);
    options_.softcap = number(attributes, "softcap", DataType::fp32, options_.softcap);
    options_.dropout = number(attributes, "dropout", DataType::fp32, options_.dropout);
    options_.causal = static_cast<int32_t>(integer("causal", options_.causal));
    options_.window_left = integer("window_left", options_.window_left);
    options_.window_right = integer("window_right", options_.window_right);
    options_.max_seqlen_q = integer("max_seqlen_q", options_.max_seqlen_q);
    options_.max_seqlen_k = integer("max_seqlen_k", options_.max_seqlen_k);
    options_.deterministic = integer("deterministic", options_.deterministic) != 0;
    options_.num_threads = static_cast<int32_t>(integer("num_threads", 0));
    options_.verify = integer("verify", 0) != 0;
    options_.validate = integer("validate", 0) != 0;
    kernel_ = text(attributes, "kernel");
    options_.kernel = kernel_.c_str();
    tuning_ = text(attributes, "tuning");
    options_.tuning = tuning_.c_str();
    device_ = text(attributes, "device");
  }

  // Whether the calls of mapped dims are one call of more sequences: each tensor of sequences has
  // all of them, one after another, and what broadcasts is the same for all. What dropout drops
  // depends on a sequence's number in its call.
  bool can_fold() const {
    if (sizes_.empty() || packed_ || random_) return false;
    return std::all_of(operands_.begin(), operands_.end(), [this](const Operand& operand) {
      const fulmen_tensor& tensor = *operand.tensor;
      const bool whole = operand.mapped.is_whole(sizes_);
      switch (kTensors[operand.place].form) {
        case Form::queries:
        case Form::keys:
        case Form::rows:
          return whole && tensor.shape[0] == tensors_.q.shape[0];
        case Form::sequences:
          return whole;
        case Form::scores:
          // The gradient of one bias for all is a sum of each call.
          if (whole) return tensor.shape[0] == tensors_.q.shape[0];
          return operand.mapped.is_one(sizes_) && tensor.shape[0] == 1 &&
                 (places_ >> kDbias & 1) == 0;
        case Form::heads:
        case Form::slopes:
          return operand.mapped.is_one(sizes_) && tensor.shape[0] == 1 && operand.place != kDsinks;
        default:
          return false;
      }
    });
  }
  void fold() {
    int64_t calls = 1;
    for (const int64_t size : sizes_) calls *= size;
    for (const Operand& operand : operands_) {
      if (!operand.mapped.is_whole(sizes_)) continue;
      fulmen_tensor& tensor = *operand.tensor;
      const int dim = kTensors[operand.place].form == Form::sequences ? 3 : 0;
      const int64_t of_one = operand.mapped.elements() / std::max<int64_t>(tensor.shape[dim], 1);
      tensor.shape[dim] *= calls;
      tensor.strides[dim] = of_one;
    }
    sizes_.clear();
  }

  // Returns how many of the buffers have a place.
  int64_t place(const Buffers& buffers, int64_t places, int leading, const Layout& layout) {
    int64_t next = 0;
    for (int at = 0; at < kPlaces; ++at) {
      if ((places >> at & 1) == 0) continue;
      const Buffer& buffer = *buffers.buffers[next++];
      fulmen_tensor& tensor = tensors_.*kTensors[at].member;
      tensor = placed(static_cast<Place>(at), view_of(buffer, leading), layout);
      operands_.push_back({static_cast<Place>(at), &tensor, Mapped(buffer, leading)});
      places_ |= uint32_t{1} << at;
    }
    return next;
  }

  const CallFrame& frame_;
  fulmen_tensors tensors_;
  fulmen_options options_;
  uint32_t places_ = 0;  // of the tensors that are there
  std::string kernel_, tuning_, device_;
  bool packed_ = false;
  std::vector<int64_t> sizes_;  // of the dims in front
  std::vector<Operand> operands_;
  std::unique_ptr<Mapped> random_;
  std::unique_ptr<Functions> functions_;
};

}  // namespace

template <Platform platform>
Error* forward(CallFrame* frame) {
  return handle(frame, [&] { return Execution(*frame).run(Pass::forward, platform); });
}
template <Platform platform>
Error* backward(CallFrame* frame) {
  return handle(frame, [&] { return Execution(*frame).run(Pass::backward, platform); });
}
template Error* forward<Platform::host>(CallFrame* frame);
template Error* forward<Platform::cuda>(CallFrame* frame);
template Error* forward<Platform::rocm>(CallFrame* frame);
template Error* backward<Platform::host>(CallFrame* frame);
template Error* backward<Platform::cuda>(CallFrame* frame);
template Error* backward<Platform::rocm>(CallFrame* frame);

}  // namespace fulmen::python::xla

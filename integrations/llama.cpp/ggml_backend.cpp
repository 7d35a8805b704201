// A ggml backend, built outside of llama.cpp, whose one operation is GGML_OP_FLASH_ATTN_EXT in the
// host's memory. ggml's scheduler gives it the operations that it says it supports, and the CPU
// backend the others. ggml_backend_load() and GGML_BACKEND_PATH load it.
#include <cstring>
#include <exception>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "attention.h"
#include "ggml-backend-impl.h"
#include "ggml-impl.h"

namespace fulmen_ggml {
namespace {

View view_of(const ggml_tensor* tensor) {
  View view;
  view.data = tensor->data;
  view.type_name = ggml_type_name(tensor->type);
  view.type_size = ggml_type_size(tensor->type);
  std::memcpy(view.ne, tensor->ne, sizeof view.ne);
  std::memcpy(view.nb, tensor->nb, sizeof view.nb);
  switch (tensor->type) {
    case GGML_TYPE_F32:
      view.dtype = FULMEN_FP32;
      break;
    case GGML_TYPE_F16:
      view.dtype = FULMEN_FP16;
      break;
    case GGML_TYPE_BF16:
      view.dtype = FULMEN_BF16;
      break;
    case GGML_TYPE_Q8_0:
      view.dtype = FULMEN_Q8_0;
      break;
    case GGML_TYPE_Q4_0:
      view.dtype = FULMEN_Q4_0;
      break;
    case GGML_TYPE_Q4_1:
      view.dtype = FULMEN_Q4_1;
      break;
    case GGML_TYPE_Q5_0:
      view.dtype = FULMEN_Q5_0;
      break;
    case GGML_TYPE_Q5_1:
      view.dtype = FULMEN_Q5_1;
      break;
    default:
      break;
  }
  return view;
}

Operation operation_of(const ggml_tensor* node) {
  Operation operation;
  operation.q = view_of(node->src[0]);
  operation.k = view_of(node->src[1]);
  operation.v = view_of(node->src[2]);
  operation.out = view_of(node);
  operation.has_mask = node->src[3] != nullptr;
  if (operation.has_mask) operation.mask = view_of(node->src[3]);
  operation.has_sinks = node->src[4] != nullptr;
  if (operation.has_sinks) operation.sinks = view_of(node->src[4]);
  float parameters[3];
  std::memcpy(parameters, node->op_params, sizeof parameters);
  operation.scale = parameters[0];
  operation.max_bias = parameters[1];
  operation.logit_softcap = parameters[2];
  return operation;
}

// Each text once in a process.
bool first_time(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::scoped_lock lock(mutex);
  return said.insert(text).second;
}

// --- Threads -------------------------------------------------------------------------------------

struct Backend {
  int num_threads = GGML_DEFAULT_N_THREADS;
  Attention attention;
#ifdef FULMEN_GGML_OPENMP
  Backend() : attention(parallel_for, this) {}
  // ggml's own team of threads, which waits, spinning, for the next graph: threads beside it would
  // share its cores. Always all of them, as OpenMP ends those that a smaller team leaves over.
  static void parallel_for(void* context, int64_t count, void (*task)(void*, int64_t), void* arg) {
    const int num_threads = static_cast<const Backend*>(context)->num_threads;
#pragma omp parallel for num_threads(num_threads) schedule(static, 1)
    for (int64_t i = 0; i < count; ++i) task(arg, i);
  }
#endif
};

void set_n_threads(ggml_backend_t backend, int n_threads) {
  static_cast<Backend*>(backend->context)->num_threads = n_threads > 0 ? n_threads : 1;
}

// --- Backend -------------------------------------------------------------------------------------

const char* backend_name(ggml_backend_t) { return "Fulmen"; }

void free_backend(ggml_backend_t backend) {
  delete static_cast<Backend*>(backend->context);
  delete backend;
}

ggml_status compute(ggml_backend_t backend, ggml_cgraph* graph) {
  Backend& own = *static_cast<Backend*>(backend->context);
  own.attention.set_num_threads(own.num_threads);
  for (int i = 0; i < graph->n_nodes; ++i) {
    const ggml_tensor* node = graph->nodes[i];
    if (node->op != GGML_OP_FLASH_ATTN_EXT || (node->flags & GGML_TENSOR_FLAG_COMPUTE) == 0)
      continue;  // supports_op: the others only say how memory is seen
    std::string error;
    try {
      error = own.attention.run(operation_of(node));
    } catch (const std::exception& e) {  // no memory; ggml's callers know no exceptions
      error = e.what();
    }
    if (!error.empty()) {
      GGML_LOG_ERROR("Fulmen: %s (%s): %s\n", ggml_op_desc(node), node->name, error.c_str());
      return GGML_STATUS_FAILED;
    }
    if (first_time("served")) {
      const std::string_view plan = own.attention.explain();
      GGML_LOG_INFO("Fulmen %s serves FLASH_ATTN_EXT: %s\n", fulmen_version(),
                    std::string(plan.substr(0, plan.find('\n'))).c_str());
    }
  }
  return GGML_STATUS_SUCCESS;
}

ggml_guid_t guid() {
  static ggml_guid value = {0x46, 0x75, 0x6c, 0x6d, 0x65, 0x6e, 0x3e, 0x91,
                            0x0a, 0x5d, 0xc4, 0x17, 0x8b, 0x62, 0xf0, 0x2e};
  return &value;
}

// --- Device --------------------------------------------------------------------------------------

const char* device_name(ggml_backend_dev_t) { return "Fulmen"; }
const char* device_description(ggml_backend_dev_t) {
  static const std::string text = std::string("Fulmen ") + fulmen_version() + ", exact attention";
  return text.c_str();
}
// Its tensors are in the CPU backend's memory.
void device_memory(ggml_backend_dev_t, size_t* free, size_t* total) { *free = *total = 0; }
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
  return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

void device_props(ggml_backend_dev_t device, ggml_backend_dev_props* props) {
  props->name = device_name(device);
  props->description = device_description(device);
  props->type = device_type(device);
  device_memory(device, &props->memory_free, &props->memory_total);
  props->caps = {};
  props->caps.buffer_from_host_ptr = true;
}

ggml_backend_t init_backend(ggml_backend_dev_t device, const char*) {
  ggml_backend_i functions = {};
  functions.get_name = backend_name;
  functions.free = free_backend;
  functions.graph_compute = compute;
  return new ggml_backend{guid(), functions, device, new Backend};
}

ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t) {
  return ggml_backend_cpu_buffer_type();
}
ggml_backend_buffer_t buffer_from_host(ggml_backend_dev_t, void* memory, size_t size, size_t) {
  return ggml_backend_cpu_buffer_from_ptr(memory, size);
}

bool supports_op(ggml_backend_dev_t, const ggml_tensor* node) {
  switch (node->op) {
    case GGML_OP_NONE:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
      return true;
    case GGML_OP_FLASH_ATTN_EXT:
      break;
    default:
      return false;
  }
  const std::string why = refusal(operation_of(node));
  if (!why.empty() && first_time(why))
    GGML_LOG_WARN("Fulmen: FLASH_ATTN_EXT goes to ggml's own code: %s\n", why.c_str());
  return why.empty();
}

bool supports_buffer(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
  return ggml_backend_buft_is_host(type);
}

// --- Registration --------------------------------------------------------------------------------

const char* registry_name(ggml_backend_reg_t) { return "Fulmen"; }
size_t device_count(ggml_backend_reg_t) { return 1; }

ggml_backend_dev_t device_at(ggml_backend_reg_t registry, size_t) {
  static ggml_backend_device device = [registry] {
    ggml_backend_device_i functions = {};
    functions.get_name = device_name;
    functions.get_description = device_description;
    functions.get_memory = device_memory;
    functions.get_type = device_type;
    functions.get_props = device_props;
    functions.init_backend = init_backend;
    functions.get_buffer_type = buffer_type;
    functions.buffer_from_host_ptr = buffer_from_host;
    functions.supports_op = supports_op;
    functions.supports_buft = supports_buffer;
    return ggml_backend_device{functions, registry, nullptr};
  }();
  return &device;
}

void* proc_address(ggml_backend_reg_t, const char* name) {
  if (std::strcmp(name, "ggml_backend_set_n_threads") == 0)
    return reinterpret_cast<void*>(set_n_threads);
  return nullptr;
}

ggml_backend_reg_t registration() {
  static ggml_backend_reg registry = {
      GGML_BACKEND_API_VERSION, {registry_name, device_count, device_at, proc_address}, nullptr};
  return &registry;
}

}  // namespace
}  // namespace fulmen_ggml

GGML_BACKEND_DL_IMPL(fulmen_ggml::registration)

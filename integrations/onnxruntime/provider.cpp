// A plugin execution provider for ONNX Runtime 1.24 and newer: kernels of three operators in the
// host's memory. ORT gives it the nodes that GetCapability names; the CPU provider has the others.
#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "node.h"

namespace fulmen_ort {
namespace {

constexpr const char* kName = "FulmenExecutionProvider";
const OrtEpApi* ep_api = nullptr;

struct Registered {
  Operator op;
  const char *type, *domain;
  int first, last;  // versions of the operator
  // Inputs from the first one that are served, beyond which none may be there, and those of them
  // that are not served.
  std::size_t inputs;
  std::vector<std::size_t> without;
  std::size_t outputs;
  // Attributes of any value: those that are served, those that say something only of an input or
  // output that is not served, and those that refusal() looks at.
  std::vector<std::string_view> attributes;
};
const Registered kOperators[] = {
    {Operator::attention,
     "Attention",
     "",
     23,
     24,
     7,
     {},
     3,
     {"q_num_heads", "kv_num_heads", "is_causal", "scale", "softcap", "softmax_precision",
      "qk_matmul_output_mode"}},
    {Operator::multi_head_attention,
     "MultiHeadAttention",
     "com.microsoft",
     1,
     1,
     8,
     {3, 4},
     3,
     {"num_heads", "unidirectional", "scale", "mask_filter_value"}},
    {Operator::group_query_attention,
     "GroupQueryAttention",
     "com.microsoft",
     1,
     1,
     11,
     {9},
     3,
     {"num_heads", "kv_num_heads", "causal", "scale", "softcap", "local_window_size", "do_rotary",
      "rotary_interleaved", "smooth_softmax", "qk_output", "qk_norm_epsilon", "q_norm_epsilon",
      "k_norm_epsilon"}},
};

OrtStatus* error(const char* words) { return ort->CreateStatus(ORT_FAIL, words); }

// --- What of a node is served --------------------------------------------------------------------

template <class T>
T attribute(const OrtNode* node, const char* name, OrtOpAttrType type, T otherwise) {
  const OrtOpAttr* found = nullptr;
  if (OrtStatus* status = ort->Node_GetAttributeByName(node, name, &found); status != nullptr) {
    ort->ReleaseStatus(status);
    return otherwise;
  }
  T value = otherwise;
  std::size_t bytes = 0;
  if (found != nullptr)
    if (OrtStatus* status = ort->ReadOpAttr(found, type, &value, sizeof value, &bytes)) {
      ort->ReleaseStatus(status);
      return otherwise;
    }
  return value;
}
int64_t integer(const OrtNode* node, const char* name, int64_t otherwise) {
  return attribute<int64_t>(node, name, ORT_OP_ATTR_INT, otherwise);
}

// Whether a value turns an attribute off. ORT sets the defaults of those that a model leaves out,
// also of attributes that are newer than this file.
bool is_off(const OrtOpAttr* attr) {
  OrtOpAttrType type = ORT_OP_ATTR_UNDEFINED;
  int64_t number = 1;
  float real = 1;
  char text[16] = {};
  std::size_t bytes = 0;
  OrtStatus* status = ort->OpAttr_GetType(attr, &type);
  if (status == nullptr && type == ORT_OP_ATTR_INT)
    status = ort->ReadOpAttr(attr, type, &number, sizeof number, &bytes);
  if (status == nullptr && type == ORT_OP_ATTR_FLOAT)
    status = ort->ReadOpAttr(attr, type, &real, sizeof real, &bytes);
  if (status == nullptr && type == ORT_OP_ATTR_STRING) {
    status = ort->ReadOpAttr(attr, type, text, sizeof text - 1, &bytes);
    if (status == nullptr && (*text == '\0' || std::strcmp(text, "NONE") == 0)) return true;
  }
  if (status == nullptr) return number == 0 || real == 0;
  ort->ReleaseStatus(status);
  return false;
}

// The name of an attribute that is on and not served, or "".
std::string unserved_attribute(const Registered& known, const OrtNode* node) {
  std::size_t count = 0;
  OrtStatus* status = ort->Node_GetNumAttributes(node, &count);
  std::vector<const OrtOpAttr*> attributes(status == nullptr ? count : 0);
  if (status == nullptr) status = ort->Node_GetAttributes(node, attributes.data(), count);
  for (const OrtOpAttr* attr : attributes) {
    const char* name = nullptr;
    if (status == nullptr) status = ort->OpAttr_GetName(attr, &name);
    if (status != nullptr) break;
    const auto& served = known.attributes;
    if (std::find(served.begin(), served.end(), name) == served.end() && !is_off(attr)) return name;
  }
  if (status == nullptr) return {};
  ort->ReleaseStatus(status);
  return "that cannot be read";
}

bool is_there(const OrtValueInfo* info) {
  const char* name = nullptr;
  if (info == nullptr) return false;
  if (OrtStatus* status = ort->GetValueInfoName(info, &name)) {
    ort->ReleaseStatus(status);
    return false;
  }
  return name != nullptr && *name != '\0';
}

struct Tensor {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::optional<std::size_t> rank;
};
Tensor tensor_of(const OrtValueInfo* info) {
  Tensor tensor;
  const OrtTypeInfo* type = nullptr;
  const OrtTensorTypeAndShapeInfo* shape = nullptr;
  if (OrtStatus* status = ort->GetValueInfoTypeInfo(info, &type)) {
    ort->ReleaseStatus(status);
    return tensor;
  }
  std::size_t rank = 0;
  OrtStatus* status = ort->CastTypeInfoToTensorInfo(type, &shape);
  if (status == nullptr && shape != nullptr) {
    status = ort->GetTensorElementType(shape, &tensor.type);
    if (status == nullptr) status = ort->GetDimensionsCount(shape, &rank);
    if (status == nullptr && rank > 0) tensor.rank = rank;
  }
  if (status != nullptr) ort->ReleaseStatus(status);
  return tensor;
}

// Why the node is left to another provider, in words, or "".
std::string refusal(const Registered& known, const OrtNode* node,
                    const std::vector<const OrtValueInfo*>& inputs,
                    const std::vector<const OrtValueInfo*>& outputs) {
  const auto has = [&](std::size_t i) { return i < inputs.size() && is_there(inputs[i]); };
  if (!has(0)) return "there is no query";
  const Tensor q = tensor_of(inputs[0]);
  if (q.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT &&
      q.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16)
    return "the query is neither float nor float16";
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool served = i < known.inputs && std::find(known.without.begin(), known.without.end(),
                                                      i) == known.without.end();
    if (!served && is_there(inputs[i])) return "input " + std::to_string(i) + " is not served";
  }
  for (std::size_t i = known.outputs; i < outputs.size(); ++i)
    if (is_there(outputs[i])) return "output " + std::to_string(i) + " is not served";
  // Keys and values; of GroupQueryAttention they may be part of the query.
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (!has(i)) {
      if (known.op == Operator::group_query_attention) continue;
      return "keys and values are packed into the query";
    }
    const Tensor tensor = tensor_of(inputs[i]);
    if (tensor.type != q.type) return "keys or values have another type than the query";
    if (!tensor.rank || (*tensor.rank != 3 && *tensor.rank != 4))
      return "keys or values have neither 3 nor 4 dims, or it is not known how many";
  }
  if (!q.rank || (*q.rank != 3 && *q.rank != 4)) return "the query has neither 3 nor 4 dims";

  if (const std::string name = unserved_attribute(known, node); !name.empty())
    return "attribute " + name + " is not served";
  if (known.op == Operator::attention) {
    if (has(3)) {
      const Tensor mask = tensor_of(inputs[3]);
      if (mask.type != q.type && mask.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL)
        return "attn_mask is neither bool nor of the query's type";
    }
  }
  // MultiHeadAttention has none.
  if (attribute<float>(node, "softcap", ORT_OP_ATTR_FLOAT, 0) > 1000)
    return "softcap is above 1000";
  if (known.op == Operator::group_query_attention) {
    if (!has(5) || !has(6)) return "seqlens_k or total_sequence_length is missing";
    if (integer(node, "smooth_softmax", 0) > 0) return "smooth_softmax is not served";
    if (has(3) && tensor_of(inputs[3]).type != q.type) return "the cache is quantized";
    if (integer(node, "do_rotary", 0) != 0 && !(has(7) && has(8)))
      return "do_rotary without cos_cache and sin_cache";
  }
  return {};
}

// --- Kernels -------------------------------------------------------------------------------------

struct Kernel : OrtKernelImpl {
  Node node;
  Kernel(Operator op, const Attributes& attributes) : OrtKernelImpl{}, node(op, attributes) {
    ort_version_supported = ORT_API_VERSION;
    Compute = [](OrtKernelImpl* self, OrtKernelContext* context) noexcept -> OrtStatus* {
      try {
        static_cast<Kernel*>(self)->node.compute(context);
        return nullptr;
      } catch (const std::exception& e) {
        return error(e.what());
      }
    };
    Release = [](OrtKernelImpl* self) noexcept { delete static_cast<Kernel*>(self); };
  }
};

OrtStatus* ORT_API_CALL create_kernel(void* state, const OrtKernelInfo* info,
                                      OrtKernelImpl** kernel) noexcept {
  const Registered& known = *static_cast<const Registered*>(state);
  const auto integer_of = [info](const char* name, int64_t value) {
    if (OrtStatus* status = ort->KernelInfoGetAttribute_int64(info, name, &value))
      ort->ReleaseStatus(status);  // not given
    return value;
  };
  const auto float_of = [info](const char* name) {
    float value = 0;
    if (OrtStatus* status = ort->KernelInfoGetAttribute_float(info, name, &value))
      ort->ReleaseStatus(status);
    return value;
  };
  Attributes a;
  a.scale = float_of("scale");
  switch (known.op) {
    case Operator::attention:
      a.q_heads = integer_of("q_num_heads", 0);
      a.kv_heads = integer_of("kv_num_heads", 0);
      a.softcap = float_of("softcap");
      a.causal = integer_of("is_causal", 0) != 0;
      break;
    case Operator::multi_head_attention:
      a.q_heads = a.kv_heads = integer_of("num_heads", 0);
      a.causal = integer_of("unidirectional", 0) != 0;
      break;
    case Operator::group_query_attention:
      a.q_heads = integer_of("num_heads", 0);
      a.kv_heads = integer_of("kv_num_heads", 0);
      a.softcap = float_of("softcap");
      a.causal = integer_of("causal", 1) != 0;
      a.window = integer_of("local_window_size", -1);
      a.rotary = integer_of("do_rotary", 0) != 0;
      a.rotary_interleaved = integer_of("rotary_interleaved", 0) != 0;
      break;
  }
  try {
    *kernel = new Kernel(known.op, a);
    return nullptr;
  } catch (const std::exception& e) {
    return error(e.what());
  }
}

OrtStatus* add_kernel(OrtKernelRegistry* registry, const Registered& known) {
  OrtKernelDefBuilder* builder = nullptr;
  OrtKernelDef* definition = nullptr;
  OrtStatus* status = ep_api->CreateKernelDefBuilder(&builder);
  if (status == nullptr) status = ep_api->KernelDefBuilder_SetOperatorType(builder, known.type);
  if (status == nullptr) status = ep_api->KernelDefBuilder_SetDomain(builder, known.domain);
  if (status == nullptr)
    status = ep_api->KernelDefBuilder_SetSinceVersion(builder, known.first, known.last);
  if (status == nullptr) status = ep_api->KernelDefBuilder_SetExecutionProvider(builder, kName);
  if (status == nullptr) status = ep_api->KernelDefBuilder_Build(builder, &definition);
  if (status == nullptr)
    status = ep_api->KernelRegistry_AddKernel(registry, definition, create_kernel,
                                              const_cast<Registered*>(&known));
  if (definition != nullptr) ep_api->ReleaseKernelDef(definition);
  if (builder != nullptr) ep_api->ReleaseKernelDefBuilder(builder);
  return status;
}

// --- Provider ------------------------------------------------------------------------------------

struct Provider : OrtEp {
  const OrtLogger* logger;
  OrtKernelRegistry* registry = nullptr;

  explicit Provider(const OrtLogger* log) : OrtEp{}, logger(log) {
    ort_version_supported = ORT_API_VERSION;
    GetName = [](const OrtEp*) noexcept { return kName; };
    GetCapability = [](OrtEp* self, const OrtGraph* graph,
                       OrtEpGraphSupportInfo* info) noexcept -> OrtStatus* {
      try {
        return static_cast<Provider*>(self)->claim(graph, info);
      } catch (const std::exception& e) {
        return error(e.what());
      }
    };
    GetKernelRegistry = [](OrtEp* self, const OrtKernelRegistry** out) noexcept -> OrtStatus* {
      *out = static_cast<Provider*>(self)->registry;
      return nullptr;
    };
  }
  ~Provider() {
    if (registry != nullptr) ep_api->ReleaseKernelRegistry(registry);
  }
  Provider(const Provider&) = delete;
  Provider& operator=(const Provider&) = delete;

  OrtStatus* register_kernels() {
    OrtStatus* status = ep_api->CreateKernelRegistry(&registry);
    for (const Registered& known : kOperators)
      if (status == nullptr) status = add_kernel(registry, known);
    return status;
  }

  OrtStatus* claim(const OrtGraph* graph, OrtEpGraphSupportInfo* info) {
    std::size_t count = 0;
    if (OrtStatus* status = ort->Graph_GetNumNodes(graph, &count)) return status;
    std::vector<const OrtNode*> nodes(count);
    if (OrtStatus* status = ort->Graph_GetNodes(graph, nodes.data(), count)) return status;
    for (const OrtNode* node : nodes) {
      const OrtKernelDef* definition = nullptr;
      if (OrtStatus* status = ep_api->EpGraphSupportInfo_LookUpKernel(info, node, &definition))
        return status;
      if (definition == nullptr) continue;
      if (OrtStatus* status = claim_node(node, info)) return status;
    }
    return nullptr;
  }

 private:
  std::set<std::string> said;

  OrtStatus* claim_node(const OrtNode* node, OrtEpGraphSupportInfo* info) {
    const char* type = nullptr;
    std::size_t inputs = 0, outputs = 0;
    if (OrtStatus* status = ort->Node_GetOperatorType(node, &type)) return status;
    if (OrtStatus* status = ort->Node_GetNumInputs(node, &inputs)) return status;
    if (OrtStatus* status = ort->Node_GetNumOutputs(node, &outputs)) return status;
    std::vector<const OrtValueInfo*> in(inputs), out(outputs);
    if (OrtStatus* status = ort->Node_GetInputs(node, in.data(), inputs)) return status;
    if (OrtStatus* status = ort->Node_GetOutputs(node, out.data(), outputs)) return status;
    for (const Registered& known : kOperators) {
      if (std::strcmp(known.type, type) != 0) continue;
      const std::string why = refusal(known, node, in, out);
      if (why.empty()) return ep_api->EpGraphSupportInfo_AddSingleNode(info, node);
      say(std::string(type) + " goes to another provider: " + why);
    }
    return nullptr;
  }

  // Each text once in a session.
  void say(const std::string& text) {
    if (!said.insert(text).second) return;
    if (OrtStatus* status =
            ort->Logger_LogMessage(logger, ORT_LOGGING_LEVEL_WARNING, ("Fulmen: " + text).c_str(),
                                   ORT_TSTR("provider.cpp"), __LINE__, "claim_node"))
      ort->ReleaseStatus(status);
  }
};

struct Factory : OrtEpFactory {
  Factory() : OrtEpFactory{} {
    ort_version_supported = ORT_API_VERSION;
    OrtEpFactory::GetName = [](const OrtEpFactory*) noexcept { return kName; };
    GetVendor = [](const OrtEpFactory*) noexcept { return "Fulmen"; };
    GetVendorId = [](const OrtEpFactory*) noexcept { return uint32_t{0}; };
    GetVersion = [](const OrtEpFactory*) noexcept { return fulmen_version(); };
    GetSupportedDevices = [](OrtEpFactory* self, const OrtHardwareDevice* const* devices,
                             std::size_t count, OrtEpDevice** found, std::size_t most,
                             std::size_t* number) noexcept -> OrtStatus* {
      *number = 0;
      for (std::size_t i = 0; i < count && *number < most; ++i)
        if (ort->HardwareDevice_Type(devices[i]) == OrtHardwareDeviceType_CPU)
          if (OrtStatus* status =
                  ep_api->CreateEpDevice(self, devices[i], nullptr, nullptr, &found[(*number)++]))
            return status;
      return nullptr;
    };
    CreateEp = [](OrtEpFactory*, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const*,
                  std::size_t, const OrtSessionOptions*, const OrtLogger* logger,
                  OrtEp** ep) noexcept -> OrtStatus* {
      try {
        auto made = std::make_unique<Provider>(logger);
        if (OrtStatus* status = made->register_kernels()) return status;
        *ep = made.release();
        return nullptr;
      } catch (const std::exception& e) {
        return error(e.what());
      }
    };
    ReleaseEp = [](OrtEpFactory*, OrtEp* ep) noexcept { delete static_cast<Provider*>(ep); };
    // Tensors are in ORT's own memory of the host.
    CreateAllocator = [](OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*,
                         OrtAllocator** allocator) noexcept -> OrtStatus* {
      *allocator = nullptr;
      return nullptr;
    };
    ReleaseAllocator = [](OrtEpFactory*, OrtAllocator*) noexcept {};
    CreateDataTransfer = [](OrtEpFactory*, OrtDataTransferImpl** transfer) noexcept -> OrtStatus* {
      *transfer = nullptr;
      return nullptr;
    };
    IsStreamAware = [](const OrtEpFactory*) noexcept { return false; };
  }
};

}  // namespace
}  // namespace fulmen_ort

extern "C" {
FULMEN_ORT_EXPORT OrtStatus* CreateEpFactories(const char*, const OrtApiBase* base,
                                               const OrtLogger*, OrtEpFactory** factories,
                                               std::size_t most, std::size_t* number) {
  using namespace fulmen_ort;
  *number = 0;
  ort = base->GetApi(ORT_API_VERSION);
  if (ort == nullptr) {
    // Any version's has the error to return.
    ort = base->GetApi(1);
    return error(("Fulmen's provider needs ONNX Runtime 1." + std::to_string(ORT_API_VERSION) +
                  " or newer; this is " + base->GetVersionString())
                     .c_str());
  }
  ep_api = ort->GetEpApi();
  if (most < 1) return error("there is no room for a factory");
  factories[(*number)++] = new Factory;
  return nullptr;
}

FULMEN_ORT_EXPORT OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) {
  delete static_cast<fulmen_ort::Factory*>(factory);
  return nullptr;
}
}

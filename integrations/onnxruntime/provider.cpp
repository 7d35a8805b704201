// A plugin execution provider for ONNX Runtime 1.24 and newer: kernels of three operators in the
// host's memory. ORT gives it the nodes that GetCapability names; the CPU provider has the others.
#include <cstring>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "served.h"

namespace fulmen_ort {
namespace {

constexpr const char* kName = "FulmenExecutionProvider";
const OrtEpApi* ep_api = nullptr;

OrtStatus* error(const char* words) { return ort->CreateStatus(ORT_FAIL, words); }

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
  try {
    *kernel = new Kernel(known.op, attributes_of(known.op, info));
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
    for (const Registered& known : operators())
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
    for (const Registered& known : operators()) {
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

#include "runtime/empty_tensors.h"

#include "runtime/kv_cache_fields.h"

namespace fulmen {
namespace {

// Nothing is read or written there. Aligned as any tensor.
void* nowhere() noexcept {
  alignas(64) static char place[64];
  return place;
}

}  // namespace

AttentionTensors without_null(const Problem& problem, AttentionTensors tensors) noexcept {
  const std::array<Problem::Shape, kTensorFields> shapes = shapes_of(problem);
  for (int i = 0; i < kTensorFields; ++i) {
    const TensorSpec& spec = problem.*kTensorTable[i].spec;
    void*& data = (tensors->*kTensorTable[i].tensor).data;
    if (spec.present && data == nullptr && bytes_of(spec, shapes[i]) == 0) data = nowhere();
  }
  return tensors;
}

KvCacheTensors without_null(const KvCacheProblem& problem, KvCacheTensors tensors) noexcept {
  for (const auto& [name, member, specified, written] : kKvCacheFields) {
    const TensorSpec& spec = problem.*specified;
    Tensor& tensor = tensors->*member;
    if (spec.present && tensor.data == nullptr && bytes_of(spec, tensor.shape) == 0)
      tensor.data = nowhere();
  }
  return tensors;
}

}  // namespace fulmen

#include "plan_cache.h"

#include <mutex>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace fulmen::python {
namespace {

template <class T>
void append(std::string& key, const T& value) {
  static_assert(std::is_scalar_v<T> || std::is_array_v<T>, "padding would be part of the key");
  key.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// All that planning reads: not where tensors are, nor the seed of the dropout.
std::string key_of(Pass pass, const Call& call) {
  std::string key;
  key.reserve(1024);
  append(key, pass);
  const fulmen_options& o = call.options;
  append(key, o.softmax_scale), append(key, o.softcap), append(key, o.causal), append(key, o.window_left);
  append(key, o.window_right), append(key, o.num_threads), append(key, o.verify), append(key, o.dropout);
  append(key, o.deterministic), append(key, o.max_seqlen_q), append(key, o.max_seqlen_k);
  for (int place = 0; place < kPlaces; ++place) {
    if (!call.has(static_cast<Place>(place))) continue;
    const fulmen_tensor& tensor = call.tensors.*kMembers[place];
    append(key, place), append(key, tensor.dtype), append(key, tensor.shape), append(key, tensor.strides);
  }
  return key.append(call.device).append(1, '\0').append(call.kernel);
}

struct Plans {
  std::mutex mutex;
  std::unordered_map<std::string, SharedPlan> by_key;
};

Plans& kept_plans() {
  static auto* plans = new Plans;  // never destroyed: at the process's end a vendor's library may be gone before
  return *plans;
}

}  // namespace

SharedPlan find_or_make_plan(Pass pass, const Call& call, int& status) {
  constexpr size_t kMost = 256;
  Plans& kept = kept_plans();
  std::string key = key_of(pass, call);
  status = FULMEN_OK;
  {
    const std::lock_guard lock(kept.mutex);
    if (const auto found = kept.by_key.find(key); found != kept.by_key.end()) return found->second;
  }
  const auto create = pass == Pass::forward ? fulmen_plan_create : fulmen_plan_create_backward;
  fulmen_plan* made = nullptr;
  {
    nb::gil_scoped_release no_gil;  // a kernel may be compiled; to look for one the GIL stays, as no lock is held for longer
    status = create(&call.tensors, &call.options, call.device_name(), &made);
  }
  if (status != FULMEN_OK) return nullptr;
  SharedPlan plan(made, [](fulmen_plan* one) { fulmen_plan_destroy(one); });
  const std::lock_guard lock(kept.mutex);
  if (kept.by_key.size() >= kMost) kept.by_key.clear();  // a run holds its own share
  kept.by_key.insert_or_assign(std::move(key), plan);
  return plan;
}

}  // namespace fulmen::python

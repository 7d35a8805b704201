#include "run/plan_cache.h"

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "functions/functions.h"
#include "platform/system.h"

namespace fulmen::python {
namespace {

// A plan's key. Its memory is kept by the thread, so that looking a plan up allocates none.
class Key {
 public:
  explicit Key(std::string& memory) : bytes_(memory) { bytes_.clear(); }
  template <class T>
  void append(const T& value) {
    static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>,
                  "padding would be part of the key");
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void append(std::string_view text) {
    append(text.size());
    bytes_.append(text);
  }
  void append(const fulmen_tensor& tensor) {
    append(tensor.dtype), append(tensor.shape), append(tensor.strides);
  }

 private:
  std::string& bytes_;
};

std::string_view text(const char* given) { return given == nullptr ? "" : given; }

// Functions of scores, and what their tensors and lists of blocks are.
void read_functions(const Planned& call, Key& key) {
  const fulmen_tensors& t = call.tensors;
  key.append(text(call.options.score_mod)), key.append(text(call.options.mask_mod));
  key.append(t.num_function_tensors);
  for (int64_t i = 0; i < t.num_function_tensors; ++i) {
    const fulmen_function_tensor& one = t.function_tensors[i];
    key.append(text(one.name)), key.append(one.dims), key.append(one.tensor);
    key.append(one.gradient.data != nullptr), key.append(one.gradient);
  }
  key.append(call.options.mask_block_q), key.append(call.options.mask_block_k);
  for (const auto& row : kBlockLists) {
    const fulmen_tensor& list = t.*row.member;
    key.append(list.data != nullptr);
    if (list.data != nullptr) key.append(list);
  }
}

// Everything that planning reads. Of addresses that is whether k and v share one; the seed of
// dropout is not read.
void read(const Planned& call, Key& key) {
  key.append(call.pass);
  const fulmen_options& o = call.options;
  key.append(environment_flag("FLASH_ATTENTION_VERIFY"));
  key.append(o.softmax_scale), key.append(o.softcap), key.append(o.causal),
      key.append(o.window_left);
  key.append(o.window_right), key.append(o.num_threads), key.append(o.verify),
      key.append(o.validate), key.append(o.dropout), key.append(o.trust_pointers);
  key.append(o.precision), key.append(o.deterministic), key.append(o.max_seqlen_q),
      key.append(o.max_seqlen_k);
  for (int place = 0; place < kPlaces; ++place) {
    if ((call.places >> place & 1) == 0) continue;
    const fulmen_tensor& tensor = call.tensors.*kTensors[place].member;
    key.append(place), key.append(tensor);
  }
  key.append(call.tensors.k.data == call.tensors.v.data);
  key.append(text(call.device)), key.append(text(o.kernel));
  key.append(text(o.tuning));
  read_functions(call, key);
}

using Plans = std::unordered_map<std::string, SharedPlan>;

Plans& kept_plans() {
  // Never destroyed: at the process's end a vendor's library may be gone before.
  static auto* plans = new Plans;
  return *plans;
}

std::mutex plans_mutex;
[[maybe_unused]] const bool kForkWatch = (hold_at_fork(plans_mutex), true);

}  // namespace

SharedPlan find_or_make_plan(const Planned& call, bool has_gil, int& status) {
  constexpr size_t kMost = 256;
  Plans& kept = kept_plans();
  thread_local std::string key;
  Key written(key);
  read(call, written);
  status = FULMEN_OK;
  {
    const std::lock_guard lock(plans_mutex);
    if (const auto found = kept.find(key); found != kept.end()) return found->second;
  }
  const std::string made_for = key;  // another call of this thread may come before this one ends
  const auto create = call.pass == Pass::forward ? fulmen_plan_create : fulmen_plan_create_backward;
  fulmen_plan* made = nullptr;
  {
    // A kernel may be compiled; to look for one the GIL stays, as no lock is held for longer.
    std::optional<nb::gil_scoped_release> no_gil;
    if (has_gil) no_gil.emplace();
    status = create(&call.tensors, &call.options, call.device, &made);
  }
  if (status != FULMEN_OK) return nullptr;
  SharedPlan plan(made, [](fulmen_plan* one) { fulmen_plan_destroy(one); });
  // What goes is destroyed after the lock: it frees memory of devices. A run holds its own share.
  Plans gone;
  SharedPlan other;  // of another thread, for the same call
  const std::lock_guard lock(plans_mutex);
  if (kept.size() >= kMost) gone.swap(kept);
  other = std::exchange(kept[made_for], plan);
  return plan;
}

}  // namespace fulmen::python

#include "run/plan_cache.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "platform/system.h"

namespace fulmen::python {
namespace {

// A plan's key, which allocates no memory.
class Key {
 public:
  template <class T>
  void append(const T& value) {
    static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>,
                  "padding would be part of the key");
    std::memcpy(bytes_ + size_, &value, sizeof value);
    size_ += sizeof value;
  }
  void append(std::string_view text) {
    // A longer one names no device and no kernel.
    const size_t count = std::min(text.size(), kLongestText);
    std::memcpy(bytes_ + size_, text.data(), count);
    size_ += count;
    append('\0');
  }
  std::string_view bytes() const { return {bytes_, size_}; }

 private:
  static constexpr size_t kLongestText = 256;
  char bytes_[128 + kPlaces * 80 + 3 * (kLongestText + 1)];
  size_t size_ = 0;
};

std::string_view text(const char* given) { return given == nullptr ? "" : given; }

// Everything that planning reads: neither addresses of tensors nor dropout's seed.
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
    key.append(place), key.append(tensor.dtype), key.append(tensor.shape),
        key.append(tensor.strides);
  }
  key.append(text(call.device)), key.append(text(o.kernel));
  key.append(text(o.tuning)),
      key.append(std::hash<std::string_view>()(text(o.tuning)));  // whatever its length
}

struct Hash {
  using is_transparent = void;
  size_t operator()(std::string_view key) const { return std::hash<std::string_view>()(key); }
};

using Plans = std::unordered_map<std::string, SharedPlan, Hash, std::equal_to<>>;

Plans& kept_plans() {
  // Never destroyed: at the process's end a vendor's library may be gone before.
  static auto* plans = new Plans;
  return *plans;
}

std::mutex plans_mutex;
[[maybe_unused]] const bool kForkWatch = (hold_at_fork(plans_mutex), true);

}  // namespace

SharedPlan find_or_make_plan(const Planned& call, bool has_gil, int& status, bool keep) {
  constexpr size_t kMost = 256;
  Plans& kept = kept_plans();
  Key key;
  read(call, key);
  status = FULMEN_OK;
  if (keep) {
    const std::lock_guard lock(plans_mutex);
    if (const auto found = kept.find(key.bytes()); found != kept.end()) return found->second;
  }
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
  if (!keep) return plan;
  // What goes is destroyed after the lock: it frees memory of devices. A run holds its own share.
  Plans gone;
  SharedPlan other;  // of another thread, for the same call
  const std::lock_guard lock(plans_mutex);
  if (kept.size() >= kMost) gone.swap(kept);
  other = std::exchange(kept[std::string(key.bytes())], plan);
  return plan;
}

}  // namespace fulmen::python

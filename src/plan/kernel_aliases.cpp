#include "plan/kernel_aliases.h"

#include <array>
#include <utility>

namespace fulmen {

std::string present_kernel_name(std::string_view name) {
  if (name == "cpu.reference.double.backward") return "cpu.reference.backward";
  // <backend>.<family>.<target>
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kFamilies{
      {{"forward", "prefill"}, {"forward_wgmma", "prefill_wgmma"}, {"split_kv", "decode"}}};
  const std::size_t first = name.find('.'), second = name.find('.', first + 1);
  std::string present(name);
  if (second == std::string_view::npos) return present;
  const std::string_view family = name.substr(first + 1, second - first - 1);
  for (const auto& [before, now] : kFamilies) {
    if (family == before) present.replace(first + 1, family.size(), now);
  }
  return present;
}

}  // namespace fulmen

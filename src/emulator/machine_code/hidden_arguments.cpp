#include "emulator/machine_code/hidden_arguments.h"

#include <cstring>
#include <optional>
#include <string_view>

namespace fulmen::gpu::isa {
namespace {

std::optional<uint64_t> value_of(std::string_view kind, const Grid& grid, int dynamic_lds_bytes) {
  if (kind == "hidden_dynamic_lds_size") return static_cast<uint64_t>(dynamic_lds_bytes);
  if (kind == "hidden_grid_dims") return grid.dimensions();
  if (kind.size() < 2 || kind[kind.size() - 2] != '_') return {};
  const auto dimension = static_cast<std::size_t>(kind.back() - 'x');
  if (dimension > 2) return {};
  kind.remove_suffix(2);
  if (kind == "hidden_block_count") return grid.workgroups[dimension];
  if (kind == "hidden_group_size") return grid.workgroup_size[dimension];
  if (kind == "hidden_remainder" || kind == "hidden_global_offset") return 0;
  return {};
}

}  // namespace

void write_hidden_arguments(std::span<const AmdArgument> arguments, const Grid& grid,
                            int dynamic_lds_bytes, std::vector<std::byte>& bytes) {
  for (const AmdArgument& a : arguments) {
    const std::optional<uint64_t> value = value_of(a.kind, grid, dynamic_lds_bytes);
    const auto at = static_cast<uint64_t>(a.offset), size = static_cast<uint64_t>(a.bytes);
    if (!value || size > sizeof *value || at > bytes.size() || size > bytes.size() - at) continue;
    std::memcpy(bytes.data() + at, &*value, size);
  }
}

}  // namespace fulmen::gpu::isa

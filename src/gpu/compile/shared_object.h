// Shared objects that the host's compiler made, loaded from memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "fulmen/status.h"

namespace fulmen::gpu {

// Loads the object, which is unloaded with the last pointer to it. who: for messages ("the
// emulator"). Errors: a folder that programs may not run from, the loader's words.
Result<std::shared_ptr<void>> load_shared_object(std::span<const std::byte> code,
                                                 std::string_view who);

}  // namespace fulmen::gpu

#include "fulmen/compile.h"
#include "runtime/environment.h"
#include "runtime/platform/files.h"

namespace fulmen {

std::string kernel_cache_folder() {
  if (std::string own = environment("FULMEN_CACHE_DIR"); !own.empty()) return own;
  const std::string users = platform::cache_folder();
  return users.empty() ? users : users + "/fulmen";
}

}  // namespace fulmen

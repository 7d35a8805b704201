#include "runtime/platform/libraries.h"

#include <dlfcn.h>
#include <mach-o/dyld.h>

#include <cstring>

namespace fulmen::platform {

// dyld does not tell a handle's image: it is the one that gives the same handle.
std::string library_path(void* library) {
  for (uint32_t i = 0; i < ::_dyld_image_count(); ++i) {
    const char* name = ::_dyld_get_image_name(i);
    void* handle = name != nullptr ? ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    if (handle == nullptr) continue;
    ::dlclose(handle);
    if (handle == library) return name;
  }
  return {};
}

std::string library_name(void* library) {
  const std::string path = library_path(library);
  return path.substr(path.rfind('/') + 1);
}

std::string LoadedLibrary::path() const { return static_cast<const char*>(loaders_); }

bool LoadedLibrary::holds(const void* address) const {
  return library_that_holds(address) == path();
}

std::vector<LoadedLibrary::Notes> LoadedLibrary::notes() const { return {}; }

void visit_loaded(const std::function<bool(const LoadedLibrary&)>& visit) {
  for (uint32_t i = 0; i < ::_dyld_image_count(); ++i) {
    const char* name = ::_dyld_get_image_name(i);
    if (name != nullptr && visit(LoadedLibrary(name))) return;
  }
}

}  // namespace fulmen::platform

#include "runtime/platform/libraries.h"

#include <dlfcn.h>

namespace fulmen::platform {

void* load_library(const std::string& name, Opening opening, OpeningError& error) {
  const int flags = RTLD_NOW | RTLD_LOCAL | (opening == Opening::if_loaded ? RTLD_NOLOAD : 0);
  void* library = ::dlopen(name.c_str(), flags);
  error = {};
  if (library != nullptr) return library;
  const char* words = ::dlerror();
  error.words = words != nullptr ? words : "";
  // "libx.so.1: cannot open shared object file: ..." says that it is not there.
  error.is_absent = error.words.starts_with(name + ": cannot open");
  return nullptr;
}

void unload_library(void* library) noexcept { ::dlclose(library); }

void* find_symbol(void* library, const char* name) noexcept { return ::dlsym(library, name); }

std::string library_that_holds(const void* address) {
  Dl_info info{};
  const bool found = ::dladdr(address, &info) != 0 && info.dli_fname != nullptr;
  return found ? info.dli_fname : std::string();
}

}  // namespace fulmen::platform

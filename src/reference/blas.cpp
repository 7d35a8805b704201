#include "reference/blas.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

namespace fulmen::reference {
namespace {

// Threads run over heads and row blocks, so each product wants one. Left alone where the program had the library open before us:
// the setting belongs to the whole process.
void use_one_thread(void* library) noexcept {
  using SetThreads = void (*)(int);
  if (auto* set = reinterpret_cast<SetThreads>(dlsym(library, "openblas_set_num_threads"))) set(1);
}

Blas open_blas() {
  const char* forced = std::getenv("FULMEN_BLAS");
  std::vector<std::string> names{"libopenblas.so.0", "libopenblas.so", "libcblas.so.3", "libcblas.so"};
  if (forced != nullptr && *forced != '\0') names = {forced};
  Blas found;
  for (const std::string& name : names) {
    void* already_open = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    void* library = already_open != nullptr ? already_open : dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    found.reason += found.reason.empty() ? "" : "; ";
    if (library == nullptr) {
      const char* error = dlerror();
      found.reason += error != nullptr ? error : name + ": cannot be opened";
      continue;
    }
    found.sgemm = reinterpret_cast<Blas::Sgemm>(dlsym(library, "cblas_sgemm"));
    if (found.sgemm == nullptr) {
      found.reason += name + ": has no cblas_sgemm";
      dlclose(library);
      continue;
    }
    if (already_open == nullptr) use_one_thread(library);
    found.library = name;
    found.reason.clear();
    return found;  // stays open for the rest of the process
  }
  found.reason = "no BLAS found (" + found.reason + "); install libopenblas0 or set FULMEN_BLAS to a library with cblas_sgemm";
  return found;
}

}  // namespace

const Blas& blas() {
  static const Blas opened = open_blas();
  return opened;
}

}  // namespace fulmen::reference

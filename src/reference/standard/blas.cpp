#include "reference/standard/blas.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "runtime/found_once.h"

namespace fulmen::reference {
namespace {

// Threads run over heads and row blocks, so each product wants one. Left alone where the program
// had the library open before us: the setting belongs to the whole process.
void use_one_thread(void* library) noexcept {
  using SetThreads = void (*)(int);
  if (auto* set = reinterpret_cast<SetThreads>(dlsym(library, "openblas_set_num_threads"))) set(1);
}

Result<Sgemm> open_blas() {
  const std::string chosen = environment("FULMEN_BLAS");
  std::vector<std::string> names{"libopenblas.so.0", "libopenblas.so", "libcblas.so.3",
                                 "libcblas.so"};
  if (!chosen.empty()) names = {chosen};
  std::string reasons;
  for (const std::string& name : names) {
    void* already_open = open_library(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    void* library =
        already_open != nullptr ? already_open : open_library(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    reasons += reasons.empty() ? "" : "; ";
    if (library == nullptr) {
      const char* error = dlerror();
      reasons += error != nullptr ? error : name + ": cannot be opened";
      continue;
    }
    if (const auto sgemm = reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
        sgemm != nullptr) {
      if (already_open == nullptr) use_one_thread(library);
      return sgemm;  // the library stays open for the rest of the process
    }
    reasons += name + ": has no cblas_sgemm";
    close_library(library);
  }
  return Status(
      StatusCode::unavailable,
      chosen.empty()
          ? fmt::format(
                "no BLAS found ({}); install libopenblas0 or set FULMEN_BLAS to a library with "
                "cblas_sgemm",
                reasons)
          : fmt::format("FULMEN_BLAS is \"{}\": a library with cblas_sgemm is needed ({})", chosen,
                        reasons));
}

}  // namespace

Result<Sgemm> find_sgemm() {
  constinit static FoundOnce<Result<Sgemm>> opened;
  return opened.get(open_blas);
}

}  // namespace fulmen::reference

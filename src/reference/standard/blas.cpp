#include "reference/standard/blas.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "runtime/found_once.h"
#include "runtime/platform/system.h"

namespace fulmen::reference {
namespace {

// Threads run over heads and row blocks, so each product wants one. Left alone where the program
// had the library open before us: the setting belongs to the whole process.
void use_one_thread(void* library) noexcept {
  void (*set)(int) = nullptr;
  platform::find_symbol(library, "openblas_set_num_threads", set);
  if (set != nullptr) set(1);
}

std::vector<std::string> usual_names() {
  switch (platform::kThisSystem) {
    case platform::System::windows:
      return {"libopenblas.dll", "openblas.dll"};
    case platform::System::macos:
      return {"/System/Library/Frameworks/Accelerate.framework/Accelerate", "libopenblas.dylib"};
    default:
      return {"libopenblas.so.0", "libopenblas.so", "libcblas.so.3", "libcblas.so"};
  }
}

Result<Sgemm> open_blas() {
  const std::string chosen = environment("FULMEN_BLAS");
  std::vector<std::string> names = usual_names();
  if (!chosen.empty()) names = {chosen};
  std::string reasons;
  for (const std::string& name : names) {
    platform::OpeningError error;
    void* already_open = open_library(name, platform::Opening::if_loaded, error);
    void* library = already_open != nullptr ? already_open
                                            : open_library(name, platform::Opening::usual, error);
    reasons += reasons.empty() ? "" : "; ";
    if (library == nullptr) {
      reasons += !error.words.empty() ? error.words : name + ": cannot be opened";
      continue;
    }
    Sgemm sgemm = nullptr;
    platform::find_symbol(library, "cblas_sgemm", sgemm);
    if (sgemm != nullptr) {
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

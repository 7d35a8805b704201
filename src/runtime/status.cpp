#include "fulmen/status.h"

#include <cstdio>
#include <cstdlib>

#include "fulmen/version.h"

namespace fulmen {

const char* to_string(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::ok:
      return "ok";
    case StatusCode::invalid_argument:
      return "invalid argument";
    case StatusCode::unsupported:
      return "unsupported";
    case StatusCode::unavailable:
      return "unavailable";
    case StatusCode::out_of_memory:
      return "out of memory";
    case StatusCode::verification_failed:
      return "verification failed";
    case StatusCode::internal:
      return "internal error";
  }
  return "unknown status";
}

void abort_without_value(const Status& status) noexcept {
  std::fprintf(stderr, "fulmen: the value of a failed call was taken: %s: %s\n",
               to_string(status.code()), status.message().c_str());
  std::abort();
}

const char* version() noexcept { return FULMEN_VERSION; }

}  // namespace fulmen

// The C ABI of compile.h, as far as it has one: prebuilt kernels.
#include "api/c/translation.h"
#include "fulmen/compile.h"

using fulmen::Status;
using fulmen::c_api::guarded;
using fulmen::c_api::null_argument;

extern "C" {

int fulmen_add_prebuilt_path(const char* path) {
  return guarded([&]() -> Status {
    return path == nullptr ? null_argument("path") : fulmen::add_prebuilt_kernels(path);
  });
}

int fulmen_add_prebuilt_pack(const void* pack, size_t bytes) {
  return guarded([&]() -> Status { return fulmen::add_prebuilt_kernels(pack, bytes).status(); });
}

void fulmen_set_prebuilt_source(bool (*source)(void* context, const char* arch, const char* kernel),
                                void* context) {
  fulmen::set_prebuilt_source(source, context);
}

}  // extern "C"

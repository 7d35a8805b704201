#include "gpu/compile/shared_object.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "runtime/fork_safe.h"
#include "runtime/platform/files.h"
#include "runtime/run_program.h"

namespace fulmen::gpu {

Result<std::shared_ptr<void>> load_shared_object(std::span<const std::byte> code,
                                                 std::string_view who) {
  // Each object has its own path: dlopen takes an equal path for the library that it has.
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/kernel.so";
  if (!directory.status().ok()) return directory.status();
  if (Status status =
          write_file(path, std::string(reinterpret_cast<const char*>(code.data()), code.size()));
      !status.ok()) {
    return status;
  }
  platform::OpeningError error;
  void* library = open_library(path, platform::Opening::usual, error);
  if (library != nullptr) return std::shared_ptr<void>(library, close_library);
  if (platform::forbids_programs(path)) {
    return Status(StatusCode::unavailable,
                  fmt::format("{} cannot load kernels from {}, which is mounted noexec: set TMPDIR "
                              "to a folder that programs may run from",
                              who, std::filesystem::path(directory.path()).parent_path().string()));
  }
  return Status(StatusCode::internal,
                fmt::format("the kernel's shared object cannot be loaded: {}", error.words));
}

}  // namespace fulmen::gpu

#include "gpu/compile/cache/own_prebuilt.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "fulmen/compile.h"
#include "fulmen/printable.h"
#include "fulmen/read_file.h"
#include "gpu/compile/cache/cache_file.h"
#include "runtime/fork_safe.h"

namespace fulmen::gpu {
namespace {

struct OwnPrebuilt {
  Mutex mutex;
  std::map<Digest, CompiledCode> kernels;
  std::vector<std::string> folders;
  PrebuiltSource source = nullptr;
  void* source_context = nullptr;
};

// Never destroyed: kernels may be asked for while the process ends.
OwnPrebuilt& all() {
  constinit static MadeOnce<OwnPrebuilt> made;
  return made.get();
}

Result<int> add_pack(std::span<const std::byte> pack) {
  Result<std::vector<CacheFile>> files = parse_cache_files(pack);
  if (!files.ok()) return files.status();
  const std::scoped_lock lock(all().mutex);
  for (CacheFile& file : files.value())
    all().kernels.insert_or_assign(file.key, std::move(file.compiled));
  return static_cast<int>(files->size());
}

Status wrong_path(const std::string& path, std::string_view why) {
  return {StatusCode::invalid_argument,
          fmt::format("path is {}: {}; a folder that `fulmen compile --out` wrote, or a file that "
                      "`--pack` wrote, is accepted",
                      printable(path), why)};
}

Status add_path(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    const std::scoped_lock lock(all().mutex);
    std::vector<std::string>& folders = all().folders;
    if (std::find(folders.begin(), folders.end(), path) == folders.end()) folders.push_back(path);
    return {};
  }
  // A pack has hundreds of kernels of tens of KiB; a file that says more is none.
  constexpr std::size_t kMostBytes = std::size_t{1} << 30;
  const Result<std::optional<std::string>> pack =
      read_regular_file(path, kMostBytes, FileTrust::given);
  if (!pack.ok()) return wrong_path(path, pack.status().message());
  if (!*pack) return wrong_path(path, "there is none");
  if ((*pack)->empty()) return wrong_path(path, "it has 0 bytes");
  const Result<int> added = add_pack(std::as_bytes(std::span(**pack)));
  return added.ok() ? Status{} : wrong_path(path, added.status().message());
}

}  // namespace

bool has_own_prebuilt() {
  const std::scoped_lock lock(all().mutex);
  return !all().kernels.empty() || !all().folders.empty();
}

bool ask_prebuilt_source(const char* arch, const char* kernel) {
  PrebuiltSource source = nullptr;
  void* context = nullptr;
  {
    const std::scoped_lock lock(all().mutex);
    source = all().source;
    context = all().source_context;
  }
  return source != nullptr && source(context, arch, kernel);
}

std::optional<CompiledCode> own_prebuilt(const Digest& key) {
  const std::scoped_lock lock(all().mutex);
  const auto found = all().kernels.find(key);
  return found != all().kernels.end() ? std::optional(found->second) : std::nullopt;
}

std::vector<std::string> own_prebuilt_folders() {
  const std::scoped_lock lock(all().mutex);
  return all().folders;
}

}  // namespace fulmen::gpu

namespace fulmen {

void set_prebuilt_source(PrebuiltSource source, void* context) {
  const std::scoped_lock lock(gpu::all().mutex);
  gpu::all().source = source;
  gpu::all().source_context = context;
}

Status add_prebuilt_kernels(const std::string& path) {
  try {
    return gpu::add_path(path);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "no memory for prebuilt kernels"};
  }
}

Result<int> add_prebuilt_kernels(const void* pack, std::size_t bytes) {
  if (pack == nullptr || bytes == 0) {
    return Status(StatusCode::invalid_argument,
                  pack == nullptr ? "pack is null: the bytes of prebuilt kernels are needed"
                                  : "bytes is 0: the bytes of prebuilt kernels are needed");
  }
  try {
    const Result<int> added = gpu::add_pack({static_cast<const std::byte*>(pack), bytes});
    if (added.ok()) return added;
    return Status(StatusCode::invalid_argument,
                  fmt::format("pack: {}; what `fulmen compile --pack` wrote is accepted",
                              added.status().message()));
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "no memory for prebuilt kernels");
  }
}

}  // namespace fulmen

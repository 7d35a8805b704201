#include "gpu/compile/cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "fulmen/compile.h"
#include "gpu/compile/cache_file.h"
#include "gpu/compile/run_program.h"
#include "gpu/compile/sha256.h"

namespace fulmen::gpu {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".fulmen";
constexpr std::size_t kDefaultBytes = std::size_t{1} << 30U;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

void log_line(const std::string& text) { std::fprintf(stderr, "fulmen: %s\n", text.c_str()); }

// A kernel that no compiler's version names: what prebuilt files are found by.
std::string prebuilt_key(const CompileRequest& r) { return hex(sha256(r.arch + "\n" + r.source)); }
std::string cache_key(const CompileRequest& r, const Compiler& compiler) {
  return hex(sha256(std::string(compiler.name()) + "\n" + compiler.identity() + "\n" + r.arch + "\n" + r.source));
}
std::string file_name(const std::string& key) { return key.substr(0, 40) + std::string(kSuffix); }

// Only the user's own files are believed.
bool is_own(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && (info.st_uid == geteuid() || info.st_uid == 0) &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

std::optional<CompiledCode> load(const std::string& path, const std::string& key) {
  if (access(path.c_str(), F_OK) != 0) return {};
  if (!is_own(path)) {
    log_line(fmt::format("{} belongs to another user, or others may write it: not used", path));
    return {};
  }
  const Result<std::vector<std::byte>> bytes = read_file(path);
  if (!bytes.ok()) return {};
  Result<CacheFile> file = decode(bytes.value());
  if (!file.ok() || file->key != key) {
    log_line(fmt::format("{} is damaged ({}): compiled again", path, file.ok() ? "another kernel's key" : file.status().message()));
    return {};
  }
  utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // last used now
  return std::move(file->compiled);
}

// Written beside its place and renamed: nobody sees half a file.
Status store(const std::string& directory, const CacheFile& file) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (!error) chmod(directory.c_str(), S_IRWXU);
  std::string temporary = directory + "/.new-XXXXXX";
  const int descriptor = mkstemp(temporary.data());
  if (descriptor < 0) return {StatusCode::unavailable, fmt::format("{} cannot be written: {}", directory, std::strerror(errno))};
  const std::string bytes = encode(file);
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = write(descriptor, bytes.data() + done, bytes.size() - done);
    if (count <= 0) break;
    done += static_cast<std::size_t>(count);
  }
  const bool whole = close(descriptor) == 0 && done == bytes.size();
  const std::string path = directory + "/" + file_name(file.key);
  if (whole && std::rename(temporary.c_str(), path.c_str()) == 0) return {};
  const Status status(StatusCode::unavailable, fmt::format("{} cannot be written: {}", path, std::strerror(errno)));
  unlink(temporary.c_str());
  return status;
}

struct DiskFile {
  std::string path;
  std::size_t bytes;
  int64_t last_used;
};

std::vector<DiskFile> disk_files(const std::string& directory) {
  std::vector<DiskFile> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    struct stat info{};
    const std::string path = entry.path().string();
    if (entry.path().extension() == kSuffix && stat(path.c_str(), &info) == 0) {
      files.push_back({path, static_cast<std::size_t>(info.st_size), info.st_mtime});
    }
  }
  return files;
}

// Deletes the least recently used files beyond $FULMEN_CACHE_BYTES.
void trim(const std::string& directory) {
  const std::string text = environment("FULMEN_CACHE_BYTES");
  const std::size_t limit = text.empty() ? kDefaultBytes : std::strtoull(text.c_str(), nullptr, 10);
  std::vector<DiskFile> files = disk_files(directory);
  std::size_t total = 0;
  for (const DiskFile& file : files) total += file.bytes;
  std::sort(files.begin(), files.end(), [](const DiskFile& a, const DiskFile& b) { return a.last_used < b.last_used; });
  for (const DiskFile& file : files) {
    if (total <= limit) return;
    if (unlink(file.path.c_str()) == 0) total -= file.bytes;
  }
}

std::optional<CompiledCode> load_prebuilt(const CompileRequest& request) {
  const std::string paths = environment("FULMEN_KERNEL_PATH"), key = prebuilt_key(request);
  for (std::size_t at = 0; at < paths.size();) {
    const std::size_t end = std::min(paths.find(':', at), paths.size());
    if (end > at) {
      if (auto code = load(paths.substr(at, end - at) + "/" + file_name(key), key)) return code;
    }
    at = end + 1;
  }
  return {};
}

struct Observer {
  std::mutex mutex;
  CompileObserver call = nullptr;
  void* context = nullptr;
};
Observer& observer() {
  static auto* const kObserver = new Observer;
  return *kObserver;
}
void observe(const CompileRequest& request, bool done, double seconds) {
  const std::scoped_lock lock(observer().mutex);
  if (observer().call != nullptr) observer().call(observer().context, request.name.c_str(), request.arch.c_str(), done, seconds);
}

Result<CompiledCode> compile(const Compiler& compiler, const CompileRequest& request) {
  const auto begin = std::chrono::steady_clock::now();
  observe(request, false, 0);
  Result<CompiledCode> code = compiler.compile(request);
  observe(request, true, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return code;
}

// What threads that want the same kernel share: one compiles, the others wait.
struct Slot {
  std::mutex mutex;
  std::optional<CompiledCode> code;
};
std::shared_ptr<Slot> slot_of(const std::string& key) {
  static std::mutex mutex;
  static auto* const kSlots = new std::map<std::string, std::shared_ptr<Slot>>;
  const std::scoped_lock lock(mutex);
  std::shared_ptr<Slot>& slot = (*kSlots)[key];
  if (slot == nullptr) slot = std::make_shared<Slot>();
  return slot;
}

}  // namespace

std::string cache_directory() {
  if (std::string path = environment("FULMEN_CACHE_DIR"); !path.empty()) return path;
  if (const std::string path = environment("XDG_CACHE_HOME"); !path.empty()) return path + "/fulmen";
  if (const std::string path = environment("HOME"); !path.empty()) return path + "/.cache/fulmen";
  return {};
}

std::vector<CacheEntry> list_cache() {
  std::vector<CacheEntry> entries;
  for (const DiskFile& file : disk_files(cache_directory())) {
    const Result<std::vector<std::byte>> bytes = read_file(file.path);
    if (!bytes.ok()) continue;
    Result<CacheFile> decoded = decode(bytes.value());
    if (decoded.ok()) entries.push_back({decoded->name, decoded->arch, file.path, file.bytes, file.last_used});
  }
  return entries;
}

Result<int> clear_cache() {
  int count = 0;
  for (const DiskFile& file : disk_files(cache_directory())) {
    if (unlink(file.path.c_str()) != 0) {
      return Status(StatusCode::unavailable, fmt::format("{} cannot be deleted: {}", file.path, std::strerror(errno)));
    }
    ++count;
  }
  return count;
}

Result<CompiledCode> cached_compile(const Compiler* compiler, const Status& no_compiler, const CompileRequest& request) {
  if (auto code = load_prebuilt(request)) return std::move(*code);
  if (compiler == nullptr) {
    return Status(no_compiler.code(),
                  fmt::format("kernel \"{}\" for {} is not prebuilt in FULMEN_KERNEL_PATH, and there is no compiler: {}",
                              request.name, request.arch, no_compiler.message()));
  }
  const std::string key = cache_key(request, *compiler), directory = cache_directory();
  const std::shared_ptr<Slot> slot = slot_of(key);
  const std::scoped_lock lock(slot->mutex);
  if (slot->code) return *slot->code;
  if (!directory.empty()) slot->code = load(directory + "/" + file_name(key), key);
  if (slot->code) return *slot->code;
  Result<CompiledCode> code = compile(*compiler, request);
  if (!code.ok()) return code.status();
  slot->code = std::move(code).value();
  if (!directory.empty()) {
    if (Status status = store(directory, {key, request.arch, request.name, *slot->code}); !status.ok()) {
      log_line(fmt::format("the kernel is kept in memory only: {}", status.message()));
    }
    trim(directory);
  }
  return *slot->code;
}

Status write_prebuilt(const std::string& directory, const CompileRequest& request, const CompiledCode& code) {
  return store(directory, {prebuilt_key(request), request.arch, request.name, code});
}

}  // namespace fulmen::gpu

namespace fulmen {

void set_compile_observer(CompileObserver call, void* context) {
  gpu::Observer& observer = gpu::observer();
  const std::scoped_lock lock(observer.mutex);
  observer.call = call;
  observer.context = context;
}

}  // namespace fulmen

#include "gpu/compile/cache/cache.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "fulmen/compile.h"
#include "gpu/compile/cache/cache_folder.h"
#include "gpu/compile/cache/own_prebuilt.h"
#include "runtime/compile_time.h"
#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "runtime/log_once.h"
#include "runtime/path_list.h"
#include "runtime/platform/files.h"

namespace fulmen::gpu {
namespace {

constexpr uint64_t kDefaultBytes = uint64_t{1} << 30;
// A tuner's thousands of kernels shall not stay for ever.
constexpr std::size_t kMemoryBytes = std::size_t{64} << 20;

// What does not work is said once: a cache that does not work slows things down, and nothing else
// would say so.
uint64_t max_bytes() {
  const std::string value = environment("FULMEN_CACHE_BYTES");
  if (value.empty()) return kDefaultBytes;
  uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), bytes);
  if (error == std::errc() && end == value.data() + value.size()) return bytes;
  log_line_once(fmt::format(
      "FULMEN_CACHE_BYTES is {}, a number of bytes from 0 to {} is accepted; {} is taken", value,
      std::numeric_limits<uint64_t>::max(), kDefaultBytes));
  return kDefaultBytes;
}

std::vector<std::string> prebuilt_folders() {
  std::vector<std::string> folders = listed_folders(environment("FULMEN_KERNEL_PATH"));
  for (const std::string& folder : folders) {
    std::error_code error;
    if (!std::filesystem::is_directory(folder, error))
      log_line_once(fmt::format("FULMEN_KERNEL_PATH names {}, which is no folder", folder));
  }
  return folders;
}

// The name is for people: it does not change the code.
Digest key_of(const CompileRequest& request, const Compiler* compiler) {
  const std::string maker =
      compiler != nullptr ? fmt::format("{} {}", compiler->name(), compiler->identity(request.arch))
                          : "prebuilt";
  return sha256(
      fmt::format("{}\n{}\n{}\n{}", maker, request.arch, request.workgroup_size, request.source));
}

// One kernel in memory. `making` is held while it is read or compiled, so that others who want it
// wait instead of doing the same.
struct Slot {
  WorkLock making;
  MadeOnce<const CompiledCode> compiled;
  MadeOnce<const Status> failed;  // as it would each time

  Slot() = default;
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  ~Slot() {
    compiled.destroy();
    failed.destroy();
  }
};

class Memory {
 public:
  std::shared_ptr<Slot> slot(const Digest& key) {
    const std::scoped_lock lock(mutex_);
    std::shared_ptr<Slot>& slot = slots_[key];
    if (slot == nullptr) slot = std::make_shared<Slot>();
    return slot;
  }
  // What was added to a slot. Over the limit all is forgotten: the disk has it, and loaded modules
  // stay loaded.
  void added(std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    bytes_ += bytes;
    if (bytes_ <= kMemoryBytes) return;
    slots_.clear();
    bytes_ = 0;
  }

 private:
  Mutex mutex_;
  std::map<Digest, std::shared_ptr<Slot>> slots_;
  std::size_t bytes_ = 0;
};

// Never destroyed: kernels may be asked for while the process ends.
Memory& memory() {
  constinit static MadeOnce<Memory> made;
  return made.get();
}

struct Observer {
  CompileObserver call = nullptr;
  void* context = nullptr;
};
// Held while it is called: one call at a time, and none once another has been set.
constinit WorkLock observing;
constinit Mutex observer_mutex;
constinit Observer observer;
void observe(const CompileRequest& request, bool done, double seconds) {
  const std::scoped_lock lock(observing);
  Observer now;
  {
    const std::scoped_lock reading(observer_mutex);
    now = observer;
  }
  if (now.call != nullptr)
    now.call(now.context, request.name.c_str(), request.arch.c_str(), done, seconds);
}
void set_observer(const Observer& to) {
  const std::scoped_lock lock(observing);
  const std::scoped_lock writing(observer_mutex);
  observer = to;
}

Result<CompiledCode> observed_compile(const Compiler& compiler, const CompileRequest& request) {
  const auto begin = std::chrono::steady_clock::now();
  observe(request, false, 0);
  Result<CompiledCode> compiled = compiler.compile(request);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ++compile_time().kernels;
  compile_time().seconds += seconds;
  observe(request, true, seconds);
  return compiled;
}

// Nothing where the folder has none, or one that cannot be taken (which is said).
std::optional<CompiledCode> load(const std::string& folder, const Digest& key, FileTrust trust,
                                 const char* consequence) {
  Result<LoadedKernel> loaded = load_kernel(folder, key, trust);
  if (!loaded.ok())
    log_line_once(fmt::format("kernel cache: {}; {}", loaded.status().message(), consequence));
  if (!loaded.ok() || !loaded->found) return {};
  return std::move(loaded->compiled);
}

std::optional<CompiledCode> load_from(const std::vector<std::string>& folders, const Digest& key) {
  for (const std::string& folder : folders) {
    if (std::optional<CompiledCode> found =
            load(folder, key, FileTrust::given, "it is passed over"))
      return found;
  }
  return {};
}

// A kernel among those that the program added.
std::optional<CompiledCode> load_added(const Digest& key) {
  std::optional<CompiledCode> found = own_prebuilt(key);
  return found ? std::move(found) : load_from(own_prebuilt_folders(), key);
}

std::optional<CompiledCode> load_prebuilt(const CompileRequest& request) {
  const std::vector<std::string> folders = prebuilt_folders();
  if (!folders.empty() || has_own_prebuilt()) {
    const Digest key = key_of(request, nullptr);
    if (std::optional<CompiledCode> found = load_from(folders, key)) return found;
    if (std::optional<CompiledCode> found = load_added(key)) return found;
  }
  return {};
}

// The source is asked last before a compiler: it reads files and looks at what is installed.
std::optional<CompiledCode> load_of_source(const CompileRequest& request) {
  // Another thread may have added the kernel since it was looked for, whatever the source says.
  ask_prebuilt_source(request.arch.c_str(), request.name.c_str());
  return load_added(key_of(request, nullptr));
}

void keep(const std::string& folder, const CacheFile& file) {
  const Status stored = store_kernel(folder, file, FileTrust::own);
  if (stored.ok()) {
    bound_kernels(folder, max_bytes());
  } else {
    log_line_once(
        fmt::format("kernel cache: {}; kernels are kept in memory only", stored.message()));
  }
}

// Where kernels are kept; empty where they are not.
std::string folder_in_use() { return max_bytes() > 0 ? kernel_cache_folder() : ""; }

// Kernels' keys are of texts that begin with a compiler's name.
Digest verdict_key(const std::string& identity) { return sha256("verdict\n" + identity); }

// A source that does not compile, or machine code that breaks a rule: a second attempt would give
// the same.
bool is_verdict(const Status& status) {
  return status.code() == StatusCode::internal || status.code() == StatusCode::verification_failed;
}

// What the disk has of a kernel: its code, or without code why its machine code was refused.
std::optional<Result<CompiledCode>> load_own(const std::string& folder, const Digest& key) {
  std::optional<CompiledCode> found = load(folder, key, FileTrust::own, "it is compiled again");
  if (!found) return {};
  if (found->code.empty()) return Status(StatusCode::verification_failed, std::move(found->log));
  return std::move(*found);
}

Result<CompiledCode> load_or_compile(const Compiler* compiler, const Status& no_compiler,
                                     const CompileRequest& request, const Digest& key,
                                     const Status& failed_before) {
  if (std::optional<CompiledCode> found = load_prebuilt(request)) return std::move(*found);
  const std::string folder = compiler != nullptr ? folder_in_use() : "";
  if (failed_before.ok() && !folder.empty()) {
    if (std::optional<Result<CompiledCode>> found = load_own(folder, key)) return std::move(*found);
  }
  if (std::optional<CompiledCode> found = load_of_source(request)) return std::move(*found);
  if (!failed_before.ok()) return failed_before;
  if (compiler == nullptr) {
    return Status{no_compiler.code(),
                  fmt::format("kernel \"{}\" for {} is not prebuilt (FULMEN_KERNEL_PATH, "
                              "add_prebuilt_kernels), and there is no compiler: {}",
                              request.name, request.arch, no_compiler.message())};
  }
  Result<CompiledCode> compiled = observed_compile(*compiler, request);
  if (folder.empty()) return compiled;
  if (compiled.ok()) {
    keep(folder, {key, request.name, request.arch, compiled.value()});
  } else if (compiled.status().code() == StatusCode::verification_failed) {
    keep(folder, {key, "refused " + request.name, request.arch, {{}, compiled.status().message()}});
  }
  return compiled;
}

}  // namespace

std::vector<CacheEntry> list_cache() {
  const std::string folder = kernel_cache_folder();
  return folder.empty() ? std::vector<CacheEntry>{} : list_kernels(folder);
}

Result<int> clear_cache() {
  const std::string folder = kernel_cache_folder();
  return folder.empty() ? Result<int>(0) : remove_kernels(folder);
}

Result<CompiledCode> cached_compile(const Compiler* compiler, const Status& no_compiler,
                                    const CompileRequest& request) {
  const Digest key = key_of(request, compiler);
  const std::shared_ptr<Slot> slot = memory().slot(key);
  const std::scoped_lock lock(slot->making);
  if (const CompiledCode* made = slot->compiled.made(); made != nullptr) return *made;
  const Status* const failed = slot->failed.made();
  Result<CompiledCode> compiled =
      load_or_compile(compiler, no_compiler, request, key, failed != nullptr ? *failed : Status());
  if (!compiled.ok()) {
    if (compiler != nullptr && is_verdict(compiled.status()))
      slot->failed.get([&] { return compiled.status(); });
    return compiled;
  }
  slot->compiled.get([&] { return compiled.value(); });
  memory().added(compiled->code.size() + compiled->log.size());
  return compiled;
}

bool has_prebuilt() { return !environment("FULMEN_KERNEL_PATH").empty() || has_own_prebuilt(); }
bool source_has_prebuilt(const std::string& arch) {
  return ask_prebuilt_source(arch.c_str(), nullptr);
}

std::string kept_verdict(const std::string& identity) {
  const std::string folder = folder_in_use();
  if (folder.empty()) return {};
  const std::optional<CompiledCode> found =
      load(folder, verdict_key(identity), FileTrust::own, "it is found out again");
  return found ? found->log : std::string();
}

void keep_verdict(const std::string& identity, const std::string& name, const std::string& arch,
                  const std::string& verdict) {
  const std::string folder = folder_in_use();
  if (!folder.empty()) keep(folder, {verdict_key(identity), name, arch, {{}, verdict}});
}

Status write_prebuilt(const std::string& directory, const CompileRequest& request,
                      const CompiledCode& code) {
  return store_kernel(directory, {key_of(request, nullptr), request.name, request.arch, code},
                      FileTrust::given);
}

}  // namespace fulmen::gpu

namespace fulmen {

void set_compile_observer(CompileObserver call, void* context) {
  gpu::set_observer({call, context});
}

}  // namespace fulmen

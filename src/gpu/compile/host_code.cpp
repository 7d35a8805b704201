#include "gpu/compile/host_code.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "gpu/compile/cache/cache.h"
#include "gpu/compile/cache/sha256.h"
#include "gpu/compile/shared_object.h"
#include "gpu/compile/toolchains/compiler.h"
#include "runtime/fork_safe.h"
#include "runtime/platform/system.h"

namespace fulmen::gpu {
namespace {

// What is loaded stays, so that a plan that is made again has its code at once.
class LoadedCode {
 public:
  std::optional<HostCode> find(const Digest& key) {
    const std::scoped_lock lock(mutex_);
    const auto found = loaded_.find(key);
    return found == loaded_.end() ? std::nullopt : std::optional(found->second);
  }
  void keep(const Digest& key, const HostCode& code) {
    constexpr std::size_t kMost = 256;
    std::map<Digest, HostCode> ended;  // unloaded after the lock
    const std::scoped_lock lock(mutex_);
    if (loaded_.size() >= kMost) loaded_.swap(ended);
    loaded_.insert_or_assign(key, code);
  }

 private:
  Mutex mutex_;
  std::map<Digest, HostCode> loaded_;
};

LoadedCode& loaded_code() {
  constinit static MadeOnce<LoadedCode> made;
  return made.get();
}

}  // namespace

Result<HostCode> make_host_code(const HostSource& source) {
  if (platform::kThisSystem == platform::System::windows)
    return Status(StatusCode::unsupported, "nothing is compiled for the host on Windows");
  const Digest key =
      sha256(fmt::format("{}\n{}\n{}", fmt::join(source.flags, " "), source.symbol, source.text));
  if (std::optional<HostCode> found = loaded_code().find(key)) return *std::move(found);
  const auto compiler = host_compiler_for(source.flags);
  if (!compiler.ok()) return compiler.status();
  const Result<CompiledCode> compiled = cached_compile(
      compiler.value().get(), {}, {source.name, source.text, source.instruction_set, 0});
  if (!compiled.ok()) return compiled.status();
  Result<std::shared_ptr<void>> library = load_shared_object(compiled->code, "Fulmen");
  if (!library.ok()) return library.status();
  HostCode code{std::move(library).value(), nullptr};
  code.function = platform::find_symbol(code.library.get(), source.symbol.c_str());
  if (code.function == nullptr) {
    return Status(StatusCode::internal,
                  fmt::format("the shared object of {} has no {}", source.name, source.symbol));
  }
  loaded_code().keep(key, code);
  return code;
}

}  // namespace fulmen::gpu

#include "gpu/compile/kernel_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "gpu/compile/cache/sha256.h"
#include "gpu/compile/embedded_kernels.h"
#include "runtime/fork_safe.h"

namespace fulmen::gpu {
namespace {

// Whether a line includes what the prelude names: core/target.h, core/platform.h.
bool includes_target(std::string_view line) {
  return line.starts_with("#include FULMEN_TARGET_HEADER");
}
bool includes_platform(std::string_view line) {
  return line.starts_with("#include FULMEN_PLATFORM_HEADER");
}

// The header that a prelude names as the target's; empty: none.
std::string_view target_header(std::string_view prelude) {
  constexpr std::string_view kDefine = "#define FULMEN_TARGET_HEADER \"";
  const std::size_t at = prelude.find(kDefine);
  if (at == std::string_view::npos) return {};
  prelude.remove_prefix(at + kDefine.size());
  return prelude.substr(0, prelude.find('"'));
}

struct PlatformNames {
  std::string_view macro, header;
};
constexpr PlatformNames kAmd{"AMD", "platforms/amd.h"}, kNvidia{"NVIDIA", "platforms/nvidia.h"},
    kEmulated{"EMULATED", "platforms/emulated.h"};

const PlatformNames& names_of(Platform platform) {
  return platform == Platform::amd ? kAmd : platform == Platform::nvidia ? kNvidia : kEmulated;
}

const EmbeddedFile* find_file(std::string_view name) {
  const EmbeddedFile* end = kEmbeddedFiles + kEmbeddedFileCount;
  const EmbeddedFile* file =
      std::find_if(kEmbeddedFiles, end, [&](const EmbeddedFile& f) { return f.name == name; });
  return file == end ? nullptr : file;
}

class Flattener {
 public:
  Flattener(std::string_view target_header, std::string_view platform_header)
      : target_header_(target_header), platform_header_(platform_header) {}
  Status add(std::string_view name) {
    if (std::find(seen_.begin(), seen_.end(), name) != seen_.end()) return {};
    seen_.emplace_back(name);
    const EmbeddedFile* file = find_file(name);
    if (file == nullptr)
      return {StatusCode::internal, fmt::format("kernel source {} is not embedded", name)};
    return add_text(name, file->text);
  }
  Status add_text(std::string_view name, std::string_view rest) {
    text_ += fmt::format("#line 1 \"{}\"\n", name);
    for (int line = 1; !rest.empty(); ++line) {
      const std::size_t length = std::min(rest.find('\n'), rest.size() - 1) + 1;
      const std::string_view current = rest.substr(0, length);
      rest.remove_prefix(length);
      if (current.starts_with("#pragma once")) {
        text_ += '\n';
      } else if (includes_target(current) && target_header_.empty()) {
        text_ += '\n';
      } else if (current.starts_with("#include \"") || includes_target(current) ||
                 includes_platform(current)) {
        const std::string_view included = includes_target(current) ? target_header_
                                          : includes_platform(current)
                                              ? platform_header_
                                              : current.substr(10, current.find('"', 10) - 10);
        if (Status status = add(included); !status.ok()) return status;
        text_ += fmt::format("#line {} \"{}\"\n", line + 1, name);
      } else {
        text_ += current;
      }
    }
    return {};
  }
  std::string take() { return std::move(text_); }

 private:
  std::string_view target_header_, platform_header_;
  std::vector<std::string> seen_;
  std::string text_;
};

std::string full_prelude(std::string_view prelude, const Chip& chip, Platform platform) {
  return fmt::format("#define FULMEN_PLATFORM_{} 1\n#define FULMEN_WAVE_SIZE {}\n{}",
                     names_of(platform).macro, chip.wave_size, prelude);
}

const Target* find_target(std::string_view name) {
  const auto all = targets();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Target* t) { return t->name == name; });
  return found == all.end() ? nullptr : *found;
}

// Whether kernels for the target are compiled without the file: it is another target's, another
// platform's, or the emulator's. Null: kernels for any.
bool is_foreign(std::string_view name, const Target* target) {
  const bool nvidia = target != nullptr && target->vendor == Vendor::nvidia;
  const bool amd = target != nullptr && target->vendor == Vendor::amd;
  if (name.find("/emulat") != std::string_view::npos) return true;
  if (name.starts_with(nvidia ? "tile/amd/" : "tile/nvidia/") && (nvidia || amd)) return true;
  if (name == (nvidia ? kAmd : kNvidia).header && (nvidia || amd)) return true;
  constexpr std::string_view kTargets = "targets/";
  if (!name.starts_with(kTargets)) return false;
  const std::size_t end = name.find('/', kTargets.size());
  if (end == std::string_view::npos) return false;  // a file of several targets
  const std::string_view of = name.substr(kTargets.size(), end - kTargets.size());
  for (; target != nullptr; target = target->extends) {
    if (target->name == of) return false;
  }
  return true;
}

// A file and what it includes, without comments, which change no code, and blank lines. Files that
// are not embedded are left out.
void add_code(std::string_view name, const Target* target, std::vector<std::string_view>& seen,
              std::string& code) {
  if (is_foreign(name, target) || std::find(seen.begin(), seen.end(), name) != seen.end()) return;
  const EmbeddedFile* file = find_file(name);
  if (file == nullptr) return;
  seen.emplace_back(file->name);
  std::string_view rest = file->text;
  while (!rest.empty()) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    line = line.substr(0, line.find("//"));
    line = line.substr(0, line.find_last_not_of(" \t") + 1);
    if (line.empty()) continue;
    constexpr std::string_view kInclude = "#include \"";
    if (includes_target(line)) {
      if (target != nullptr)
        add_code(fmt::format("targets/{}/target.h", target->name), target, seen, code);
    } else if (includes_platform(line)) {
      for (const PlatformNames& platform : {kAmd, kNvidia}) {
        add_code(platform.header, target, seen, code);
      }
    } else if (line.starts_with(kInclude)) {
      add_code(line.substr(kInclude.size(), line.find('"', kInclude.size()) - kInclude.size()),
               target, seen, code);
    } else {
      code.append(line) += '\n';
    }
  }
}

}  // namespace

Result<std::string> kernel_source(std::string_view entry, std::string_view prelude,
                                  const Chip& chip, Platform platform) {
  Flattener flattener(target_header(prelude), names_of(platform).header);
  if (Status status = flattener.add(entry); !status.ok()) return status;
  return full_prelude(prelude, chip, platform) + flattener.take();
}

Result<std::string> kernel_source_of(std::string_view text, std::string_view prelude,
                                     const Chip& chip, Platform platform) {
  Flattener flattener(target_header(prelude), names_of(platform).header);
  if (Status status = flattener.add_text("kernel.h", text); !status.ok()) return status;
  return full_prelude(prelude, chip, platform) + flattener.take();
}

std::string kernel_source_identity(const std::vector<std::string_view>& entries,
                                   std::string_view target) {
  constinit static Mutex mutex;
  constinit static MadeOnce<std::map<std::string, std::string>> made;
  auto& all = made.get();
  constexpr std::size_t kDigits = 16;
  const std::string key = fmt::format("{} {}", fmt::join(entries, " "), target);
  const std::scoped_lock lock(mutex);
  std::string& known = all[key];
  if (!known.empty()) return known;
  std::vector<std::string_view> seen;
  std::string code = key + '\n';
  const Target* const compiled_for = find_target(target);
  for (const std::string_view entry : entries) add_code(entry, compiled_for, seen, code);
  known = hex(sha256(code)).substr(0, kDigits);
  return known;
}

}  // namespace fulmen::gpu

#include "gpu/compile/kernel_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "gpu/compile/cache/sha256.h"
#include "gpu/compile/embedded_kernels.h"

namespace fulmen::gpu {
namespace {

class Flattener {
 public:
  Status add(std::string_view name) {
    if (std::find(seen_.begin(), seen_.end(), name) != seen_.end()) return {};
    seen_.emplace_back(name);
    const EmbeddedFile* end = kEmbeddedFiles + kEmbeddedFileCount;
    const EmbeddedFile* file = std::find_if(kEmbeddedFiles, end, [&](const EmbeddedFile& f) { return f.name == name; });
    if (file == end) return {StatusCode::internal, fmt::format("kernel source {} is not embedded", name)};
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
      } else if (current.starts_with("#include \"")) {
        const std::string_view included = current.substr(10, current.find('"', 10) - 10);
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
  std::vector<std::string> seen_;
  std::string text_;
};

std::string full_prelude(std::string_view prelude, const Chip& chip, Platform platform) {
  const char* name = platform == Platform::amd ? "AMD" : platform == Platform::nvidia ? "NVIDIA" : "EMULATED";
  return fmt::format("#define FULMEN_PLATFORM_{} 1\n#define FULMEN_WAVE_SIZE {}\n{}", name, chip.wave_size, prelude);
}

}  // namespace

Result<std::string> kernel_source(std::string_view entry, std::string_view prelude, const Chip& chip, Platform platform) {
  Flattener flattener;
  if (Status status = flattener.add(entry); !status.ok()) return status;
  return full_prelude(prelude, chip, platform) + flattener.take();
}

Result<std::string> kernel_source_of(std::string_view text, std::string_view prelude, const Chip& chip, Platform platform) {
  Flattener flattener;
  if (Status status = flattener.add_text("kernel.h", text); !status.ok()) return status;
  return full_prelude(prelude, chip, platform) + flattener.take();
}

const std::string& kernel_source_identity() {
  static const auto* const kIdentity = [] {
    constexpr std::size_t kDigits = 16;
    std::string all;
    for (const EmbeddedFile* file = kEmbeddedFiles; file != kEmbeddedFiles + kEmbeddedFileCount; ++file) {
      all += fmt::format("{}\n{}\n", file->name, file->text);
    }
    return new std::string(hex(sha256(all)).substr(0, kDigits));
  }();
  return *kIdentity;
}

}  // namespace fulmen::gpu

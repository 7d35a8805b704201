#include "gpu/compile/kernel_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

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
    text_ += fmt::format("#line 1 \"{}\"\n", name);
    std::string_view rest = file->text;
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

}  // namespace

Result<std::string> kernel_source(std::string_view entry, std::string_view prelude, const Chip& chip, Platform platform) {
  Flattener flattener;
  // The entry's includes of platforms/ are behind #if: only the right platform's text is wanted.
  const char* name = platform == Platform::amd ? "AMD" : platform == Platform::nvidia ? "NVIDIA" : "EMULATED";
  std::string text = fmt::format("#define FULMEN_PLATFORM_{} 1\n#define FULMEN_WAVE_SIZE {}\n#define FULMEN_CHIP_{} 1\n{}", name,
                                 chip.wave_size, chip.arch, prelude);
  if (Status status = flattener.add(entry); !status.ok()) return status;
  return text + flattener.take();
}

}  // namespace fulmen::gpu

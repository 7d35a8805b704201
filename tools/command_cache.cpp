#include <fmt/chrono.h>
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "fulmen/compile.h"
#include "fulmen/printable.h"
#include "tools/commands.h"

namespace fulmen::tools {
namespace {

Result<std::string> folder_or_reason() {
  std::string folder = kernel_cache_folder();
  std::error_code error;
  if (std::filesystem::exists(folder, error) && !std::filesystem::is_directory(folder, error)) {
    return Status{StatusCode::unavailable,
                  fmt::format("{} is not a folder: FULMEN_CACHE_DIR names the kernels' folder",
                              printable(folder))};
  }
  if (!folder.empty()) return folder;
  return Status{StatusCode::unavailable,
                "there is no cache: none of FULMEN_CACHE_DIR, XDG_CACHE_HOME and HOME is set"};
}

Status dir() {
  const Result<std::string> folder = folder_or_reason();
  if (folder.ok()) fmt::print("{}\n", folder.value());
  return folder.status();
}

Status list() {
  const Result<std::string> folder = folder_or_reason();
  if (!folder.ok()) return folder.status();
  std::size_t bytes = 0;
  const std::vector<CachedKernel> kernels = cached_kernels();
  for (const CachedKernel& kernel : kernels) {
    fmt::print("{:10} {:8} {:%Y-%m-%d %H:%M}  {}\n", printable(kernel.arch), kernel.bytes,
               fmt::gmtime(static_cast<std::time_t>(kernel.last_used)), printable(kernel.kernel));
    bytes += kernel.bytes;
  }
  fmt::print("{}: {} kernels, {:.1f} MB\n", printable(folder.value()), kernels.size(),
             static_cast<double>(bytes) / 1e6);
  return {};
}

Status clear() {
  if (const Result<std::string> folder = folder_or_reason(); !folder.ok()) return folder.status();
  const Result<int> count = clear_kernel_cache();
  if (!count.ok()) return count.status();
  fmt::print("{}: {} kernels deleted\n", kernel_cache_folder(), count.value());
  return {};
}

}  // namespace

Command cache_command(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("cache", "the compiled GPU kernels kept on disk");
  const CLI::App* list_parser =
      parser->add_subcommand("list", "chip, bytes, last use (UTC) and kernel of each");
  const CLI::App* clear_parser = parser->add_subcommand("clear", "delete them all");
  const CLI::App* dir_parser = parser->add_subcommand("dir", "where they are");
  return {parser, [=]() -> Status {
            if (list_parser->parsed()) return list();
            if (clear_parser->parsed()) return clear();
            if (dir_parser->parsed()) return dir();
            return {StatusCode::invalid_argument, "cache needs a subcommand: list, clear or dir"};
          }};
}

}  // namespace fulmen::tools

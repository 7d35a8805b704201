#include <fmt/chrono.h>
#include <fmt/format.h>

#include <memory>

#include "commands.h"
#include "fulmen/compile.h"

namespace fulmen::tools {
namespace {

Status list() {
  const std::string folder = kernel_cache_folder();
  if (folder.empty()) {
    return {StatusCode::unavailable, "there is no cache: none of FULMEN_CACHE_DIR, XDG_CACHE_HOME and HOME is set"};
  }
  std::size_t bytes = 0;
  const std::vector<CachedKernel> kernels = cached_kernels();
  for (const CachedKernel& kernel : kernels) {
    fmt::print("{:10} {:8} {:%Y-%m-%d %H:%M}  {}\n", kernel.arch, kernel.bytes,
               fmt::gmtime(static_cast<std::time_t>(kernel.last_used)), kernel.kernel);
    bytes += kernel.bytes;
  }
  fmt::print("{}: {} kernels, {:.1f} MB\n", folder, kernels.size(), static_cast<double>(bytes) / 1e6);
  return {};
}

Status clear() {
  const Result<int> count = clear_kernel_cache();
  if (!count.ok()) return count.status();
  fmt::print("{}: {} kernels deleted\n", kernel_cache_folder(), count.value());
  return {};
}

}  // namespace

Command cache_command(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("cache", "the compiled GPU kernels kept on disk");
  parser->require_subcommand(1);
  CLI::App* clear_parser = parser->add_subcommand("clear", "delete them all");
  parser->add_subcommand("list", "chip, bytes, last use (UTC) and kernel of each");
  return {parser, [clear_parser] { return clear_parser->parsed() ? clear() : list(); }};
}

}  // namespace fulmen::tools

#include "gpu/compile/cache/cache_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <optional>
#include <system_error>
#include <tuple>

#include "runtime/platform/files.h"
#include "runtime/regular_file.h"

namespace fulmen::gpu {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".kernel";
constexpr std::string_view kHalfWritten = ".kernel-";  // and six letters of File::create
constexpr std::size_t kNameBytes = 16;                 // of the key
constexpr int64_t kHalfWrittenSeconds = 3600;          // no write takes so long

bool is_kernel_name(const std::string& name) {
  return name.size() == 2 * kNameBytes + kSuffix.size() && name.ends_with(kSuffix) &&
         name.find_first_not_of("0123456789abcdef") == 2 * kNameBytes;
}

struct FolderFile {
  std::string path, name;
  platform::FileFacts facts;
};

// Regular files, without following links; an unreadable folder has none.
std::vector<FolderFile> files_of(const std::string& folder) {
  std::vector<FolderFile> files;
  for (const std::string& name : platform::names_in(folder)) {
    const std::string path = (fs::path(folder) / name).string();
    std::error_code error;
    const auto facts = platform::facts_of(path, platform::Links::kept, error);
    if (facts && facts->is_regular) files.push_back({path, name, *facts});
  }
  return files;
}

// What an ended process left; a younger one is being written.
bool is_left_half_written(const FolderFile& file) {
  return file.name.starts_with(kHalfWritten) && file.name.size() == kHalfWritten.size() + 6 &&
         file.facts.seconds < std::time(nullptr) - kHalfWrittenSeconds;
}

// With every missing folder on the way. The cache's are for this user alone; what the user named is
// as umask has it.
Status make_folders(const fs::path& folder, FileTrust trust) {
  std::error_code error;
  if (fs::is_directory(platform::long_path(folder.string()), error)) return {};
  if (const fs::path parent = folder.parent_path(); !parent.empty() && parent != folder) {
    if (Status status = make_folders(parent, trust); !status.ok()) return status;
  }
  error = platform::make_folder(
      folder.string(), trust == FileTrust::own ? platform::Access::own : platform::Access::usual);
  if (!error || error == std::errc::file_exists) return {};
  return {StatusCode::unavailable,
          fmt::format("{} cannot be made: {}", folder.string(), error.message())};
}

// A file that is being written, under the name that it has till then, for this user alone.
Result<platform::File> open_half_written(const std::string& folder, FileTrust trust,
                                         std::string& path) {
  if (Status status = make_folders(folder, trust); !status.ok()) return status;
  path = fmt::format("{}/{}XXXXXX", folder, kHalfWritten);
  std::error_code error;
  platform::File file = platform::File::create(path, error);
  if (!error) return file;
  return Status{StatusCode::unavailable,
                fmt::format("{} cannot be written: {}", folder, error.message())};
}

}  // namespace

std::string kernel_path(const std::string& folder, const Digest& key) {
  return fmt::format("{}/{}{}", folder, hex(key).substr(0, 2 * kNameBytes), kSuffix);
}

Result<LoadedKernel> load_kernel(const std::string& folder, const Digest& key, FileTrust trust) {
  const std::string path = kernel_path(folder, key);
  const auto failure = [&](std::string_view why) {
    return Status{StatusCode::unavailable, fmt::format("{}: {}", path, why)};
  };
  const Result<std::optional<RegularFile>> opened = RegularFile::open(path, trust);
  if (!opened.ok()) return failure(opened.status().message());
  if (!*opened) return LoadedKernel{};
  const RegularFile& file = **opened;
  // The header first: memory for the rest is asked for only where the lengths in it add up to the
  // file's.
  const auto header =
      parse_cache_header(file.read<std::vector<std::byte>>(kCacheListingBytes), file.bytes());
  if (!header.ok()) return failure(header.status().message());
  Result<CacheFile> parsed = parse_cache_file(file.read<std::vector<std::byte>>(file.bytes()));
  if (!parsed.ok()) return failure(parsed.status().message());
  if (parsed->key != key) return failure("it belongs to another kernel");
  // Its last use; a read-only disk keeps none.
  if (trust == FileTrust::own) file.set_changed_now();
  return LoadedKernel{true, std::move(parsed->compiled)};
}

Status make_folder(const std::string& folder) {
  std::string temporary;
  Result<platform::File> opened = open_half_written(folder, FileTrust::given, temporary);
  if (!opened.ok()) return opened.status();
  static_cast<void>(opened->close());
  platform::try_to_remove_file(temporary);
  return {};
}

Status store_kernel(const std::string& folder, const CacheFile& file, FileTrust trust) {
  const std::vector<std::byte> bytes = write_cache_file(file);
  if (bytes.size() > kMaxCacheFileBytes) {
    return {StatusCode::unavailable,
            fmt::format("kernel \"{}\" has {} bytes as a file: up to {} are kept", file.name,
                        bytes.size(), kMaxCacheFileBytes)};
  }
  std::string temporary;
  Result<platform::File> opened = open_half_written(folder, trust, temporary);
  if (!opened.ok()) return opened.status();
  // Who may read a folder of prebuilt kernels may read these.
  if (trust == FileTrust::given) opened->let_readers_of(folder);
  std::error_code error = opened->write(bytes);
  if (const std::error_code closed = opened->close(); !error) error = closed;
  if (!error) error = platform::replace_file(temporary, kernel_path(folder, file.key));
  if (!error) return {};
  platform::try_to_remove_file(temporary);
  return {StatusCode::unavailable,
          fmt::format("{} cannot be written: {}", folder, error.message())};
}

std::vector<CacheEntry> list_kernels(const std::string& folder) {
  std::vector<CacheEntry> entries;
  for (const FolderFile& file : files_of(folder)) {
    if (!is_kernel_name(file.name)) continue;
    const Result<std::optional<RegularFile>> opened = RegularFile::open(file.path, FileTrust::own);
    if (!opened.ok() || !*opened) continue;
    const RegularFile& kernel = **opened;
    Result<CacheFileHeader> header =
        parse_cache_header(kernel.read<std::vector<std::byte>>(kCacheListingBytes), kernel.bytes());
    if (!header.ok()) continue;
    entries.push_back({std::move(header->name), std::move(header->arch), file.path, kernel.bytes(),
                       file.facts.seconds});
  }
  std::sort(entries.begin(), entries.end(), [](const CacheEntry& a, const CacheEntry& b) {
    return std::tie(a.arch, a.name, a.file) < std::tie(b.arch, b.name, b.file);
  });
  return entries;
}

Result<int> remove_kernels(const std::string& folder) {
  int count = 0;
  for (const FolderFile& file : files_of(folder)) {
    if (!is_kernel_name(file.name) && !is_left_half_written(file)) continue;
    const std::error_code error = platform::remove_file(file.path);
    if (error && error != std::errc::no_such_file_or_directory) {
      return Status{StatusCode::unavailable,
                    fmt::format("{} cannot be removed: {}", file.path, error.message())};
    }
    count += is_kernel_name(file.name) ? 1 : 0;
  }
  return count;
}

void bound_kernels(const std::string& folder, uint64_t max_bytes) {
  std::vector<FolderFile> kernels;
  uint64_t bytes = 0;
  for (FolderFile& file : files_of(folder)) {
    if (is_left_half_written(file)) platform::try_to_remove_file(file.path);
    if (!is_kernel_name(file.name)) continue;
    // Damaged: it would push all others out.
    if (file.facts.bytes > kMaxCacheFileBytes) {
      platform::try_to_remove_file(file.path);
      continue;
    }
    bytes += file.facts.bytes;
    kernels.push_back(std::move(file));
  }
  if (bytes <= max_bytes) return;
  std::sort(kernels.begin(), kernels.end(), [](const FolderFile& a, const FolderFile& b) {
    return std::tie(a.facts.seconds, a.facts.nanoseconds) <
           std::tie(b.facts.seconds, b.facts.nanoseconds);
  });
  for (const FolderFile& file : kernels) {
    if (bytes <= max_bytes) return;
    const std::error_code error = platform::remove_file(file.path);
    if (!error || error == std::errc::no_such_file_or_directory) bytes -= file.facts.bytes;
  }
}

}  // namespace fulmen::gpu

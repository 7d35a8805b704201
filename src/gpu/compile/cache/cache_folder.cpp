#include "gpu/compile/cache/cache_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>

#include "runtime/regular_file.h"

namespace fulmen::gpu {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".kernel";
constexpr std::string_view kHalfWritten = ".kernel-";  // and six letters of mkstemp
constexpr std::size_t kNameBytes = 16;                 // of the key
constexpr int64_t kHalfWrittenSeconds = 3600;          // no write takes so long

std::string words(int error) { return std::error_code(error, std::generic_category()).message(); }

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }
  int get() const noexcept { return descriptor_; }
  int close() { return descriptor_ < 0 ? 0 : ::close(std::exchange(descriptor_, -1)); }

 private:
  int descriptor_;
};

bool is_kernel_name(const std::string& name) {
  return name.size() == 2 * kNameBytes + kSuffix.size() && name.ends_with(kSuffix) &&
         name.find_first_not_of("0123456789abcdef") == 2 * kNameBytes;
}

Status write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return {StatusCode::unavailable, words(errno)};
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

struct FolderFile {
  std::string path, name;
  struct stat info;
};

// Regular files, without following links; an unreadable folder has none.
std::vector<FolderFile> files_of(const std::string& folder) {
  std::vector<FolderFile> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    FolderFile file{it->path().string(), it->path().filename().string(), {}};
    if (::lstat(file.path.c_str(), &file.info) == 0 && S_ISREG(file.info.st_mode))
      files.push_back(std::move(file));
  }
  return files;
}

// What an ended process left; a younger one is being written.
bool is_left_half_written(const FolderFile& file) {
  return file.name.starts_with(kHalfWritten) && file.name.size() == kHalfWritten.size() + 6 &&
         file.info.st_mtim.tv_sec < ::time(nullptr) - kHalfWrittenSeconds;
}

// With every missing folder on the way. The cache's are for this user alone; what the user named is
// as umask has it.
Status make_folders(const fs::path& folder, FileTrust trust) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return {};
  if (const fs::path parent = folder.parent_path(); !parent.empty() && parent != folder) {
    if (Status status = make_folders(parent, trust); !status.ok()) return status;
  }
  if (::mkdir(folder.c_str(), trust == FileTrust::own ? 0700 : 0777) == 0 || errno == EEXIST)
    return {};
  return {StatusCode::unavailable,
          fmt::format("{} cannot be made: {}", folder.string(), words(errno))};
}

// A file that is being written, under the name that it has till then; mode 0600.
Result<int> open_half_written(const std::string& folder, FileTrust trust, std::string& path) {
  if (Status status = make_folders(folder, trust); !status.ok()) return status;
  path = fmt::format("{}/{}XXXXXX", folder, kHalfWritten);
  const int descriptor = ::mkostemp(path.data(), O_CLOEXEC);
  if (descriptor >= 0) return descriptor;
  return Status{StatusCode::unavailable,
                fmt::format("{} cannot be written: {}", folder, words(errno))};
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
  if (trust == FileTrust::own) ::futimens(file.descriptor(), nullptr);
  return LoadedKernel{true, std::move(parsed->compiled)};
}

Status make_folder(const std::string& folder) {
  std::string temporary;
  const Result<int> opened = open_half_written(folder, FileTrust::given, temporary);
  if (!opened.ok()) return opened.status();
  ::close(opened.value());
  ::unlink(temporary.c_str());
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
  const Result<int> opened = open_half_written(folder, trust, temporary);
  if (!opened.ok()) return opened.status();
  Descriptor descriptor(opened.value());
  // Who may read a folder of prebuilt kernels may read these.
  if (struct stat info{}; trust == FileTrust::given && ::stat(folder.c_str(), &info) == 0)
    ::fchmod(descriptor.get(), 0600 | (info.st_mode & 0444));
  Status status = write_all(descriptor.get(), bytes);
  if (status.ok() && descriptor.close() != 0) status = {StatusCode::unavailable, words(errno)};
  if (status.ok() && ::rename(temporary.c_str(), kernel_path(folder, file.key).c_str()) != 0) {
    status = {StatusCode::unavailable, words(errno)};
  }
  if (status.ok()) return status;
  ::unlink(temporary.c_str());
  return {StatusCode::unavailable,
          fmt::format("{} cannot be written: {}", folder, status.message())};
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
                       file.info.st_mtim.tv_sec});
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
    if (::unlink(file.path.c_str()) != 0 && errno != ENOENT) {
      return Status{StatusCode::unavailable,
                    fmt::format("{} cannot be removed: {}", file.path, words(errno))};
    }
    count += is_kernel_name(file.name) ? 1 : 0;
  }
  return count;
}

void bound_kernels(const std::string& folder, uint64_t max_bytes) {
  std::vector<FolderFile> kernels;
  uint64_t bytes = 0;
  for (FolderFile& file : files_of(folder)) {
    if (is_left_half_written(file)) ::unlink(file.path.c_str());
    if (!is_kernel_name(file.name)) continue;
    // Damaged: it would push all others out.
    if (static_cast<uint64_t>(file.info.st_size) > kMaxCacheFileBytes) {
      ::unlink(file.path.c_str());
      continue;
    }
    bytes += static_cast<uint64_t>(file.info.st_size);
    kernels.push_back(std::move(file));
  }
  if (bytes <= max_bytes) return;
  std::sort(kernels.begin(), kernels.end(), [](const FolderFile& a, const FolderFile& b) {
    return std::tie(a.info.st_mtim.tv_sec, a.info.st_mtim.tv_nsec) <
           std::tie(b.info.st_mtim.tv_sec, b.info.st_mtim.tv_nsec);
  });
  for (const FolderFile& file : kernels) {
    if (bytes <= max_bytes) return;
    if (::unlink(file.path.c_str()) == 0 || errno == ENOENT)
      bytes -= static_cast<uint64_t>(file.info.st_size);
  }
}

}  // namespace fulmen::gpu

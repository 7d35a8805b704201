#include "runtime/platform/files.h"

#include <fcntl.h>
#include <io.h>
#include <windows.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>

#include "runtime/platform/system.h"
#include "runtime/platform/windows/owner.h"
#include "runtime/platform/windows/words.h"

namespace fulmen::platform {
namespace {

// Others may read, write, rename and delete what this process has open, as on other systems.
constexpr DWORD kShared = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

HANDLE handle_of(std::intptr_t handle) {
  return reinterpret_cast<HANDLE>(handle);  // NOLINT(performance-no-int-to-ptr)
}

HANDLE open_path(const std::string& path, DWORD rights, DWORD sharing, DWORD disposition,
                 DWORD flags, std::error_code& error) {
  HANDLE opened =
      ::CreateFileW(wide_path(path).c_str(), rights, sharing, nullptr, disposition, flags, nullptr);
  error = opened == INVALID_HANDLE_VALUE ? last_error() : std::error_code();
  return opened;
}

FileFacts facts_of_handle(HANDLE handle) {
  BY_HANDLE_FILE_INFORMATION info{};
  if (::GetFileInformationByHandle(handle, &info) == 0) return {};
  constexpr DWORD kIrregular =
      FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_REPARSE_POINT | FILE_ATTRIBUTE_DEVICE;
  // In 100 ns since 1601.
  constexpr std::uint64_t kTo1970 = 116444736000000000, kSecond = 10000000;
  const std::uint64_t time = (std::uint64_t{info.ftLastWriteTime.dwHighDateTime} << 32U |
                              info.ftLastWriteTime.dwLowDateTime) -
                             kTo1970;
  return {.is_regular =
              ::GetFileType(handle) == FILE_TYPE_DISK && (info.dwFileAttributes & kIrregular) == 0,
          .bytes = std::uint64_t{info.nFileSizeHigh} << 32U | info.nFileSizeLow,
          .seconds = static_cast<std::int64_t>(time / kSecond),
          .nanoseconds = static_cast<std::int64_t>(time % kSecond * 100)};
}

// Calls make(path) with names in place of XXXXXX until one is new.
template <class Make>
std::error_code with_new_name(std::string& path, const Make& make) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device random;
  const std::size_t at = path.size() - 6;
  for (int tries = 0; tries < 100; ++tries) {
    for (std::size_t i = at; i < path.size(); ++i) path[i] = kLetters[random() % kLetters.size()];
    const std::error_code error = make(path);
    if (error != std::errc::file_exists) return error;
  }
  return std::make_error_code(std::errc::file_exists);
}

}  // namespace

std::optional<FileFacts> facts_of(const std::string& path, Links links, std::error_code& error) {
  const DWORD flags =
      FILE_FLAG_BACKUP_SEMANTICS | (links == Links::kept ? FILE_FLAG_OPEN_REPARSE_POINT : 0);
  HANDLE opened = open_path(path, FILE_READ_ATTRIBUTES, kShared, OPEN_EXISTING, flags, error);
  if (error) return std::nullopt;
  const FileFacts facts = facts_of_handle(opened);
  ::CloseHandle(opened);
  return facts;
}

File File::open(const std::string& path, Links links, std::error_code& error) {
  const DWORD flags =
      FILE_FLAG_BACKUP_SEMANTICS | (links == Links::kept ? FILE_FLAG_OPEN_REPARSE_POINT : 0);
  return File(reinterpret_cast<std::intptr_t>(
      open_path(path, GENERIC_READ, kShared, OPEN_EXISTING, flags, error)));
}

File File::create(std::string& path, std::error_code& error) {
  HANDLE opened = INVALID_HANDLE_VALUE;
  error = with_new_name(path, [&](const std::string& name) {
    std::error_code made;
    opened = open_path(name, GENERIC_READ | GENERIC_WRITE | DELETE, kShared, CREATE_NEW,
                       FILE_ATTRIBUTE_NORMAL, made);
    return made;
  });
  return File(reinterpret_cast<std::intptr_t>(opened));
}

File File::lock(const std::string& path, std::error_code& error) {
  File file(
      reinterpret_cast<std::intptr_t>(open_path(path, GENERIC_READ | GENERIC_WRITE, kShared,
                                                OPEN_ALWAYS, FILE_FLAG_OPEN_REPARSE_POINT, error)));
  OVERLAPPED from_the_start{};
  if (!error && ::LockFileEx(handle_of(file.handle_), LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0,
                             &from_the_start) == 0) {
    error = last_error();
    file.close();
  }
  return file;
}

FileFacts File::facts() const { return facts_of_handle(handle_of(handle_)); }
bool File::is_this_users() const { return platform::is_this_users(handle_of(handle_)); }
bool File::is_writable_by_others() const { return others_may_write(handle_of(handle_)); }

std::size_t File::read_start(void* to, std::size_t limit) const {
  std::size_t have = 0;
  while (have < limit) {
    OVERLAPPED from{};
    from.Offset = static_cast<DWORD>(have);
    from.OffsetHigh = static_cast<DWORD>(std::uint64_t{have} >> 32U);
    const auto want =
        static_cast<DWORD>(std::min<std::size_t>(limit - have, std::size_t{1} << 30U));
    DWORD count = 0;
    if (::ReadFile(handle_of(handle_), static_cast<char*>(to) + have, want, &count, &from) == 0 ||
        count == 0)
      break;
    have += count;
  }
  return have;
}

std::error_code File::write(std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const auto want =
        static_cast<DWORD>(std::min<std::size_t>(bytes.size(), std::size_t{1} << 30U));
    DWORD count = 0;
    if (::WriteFile(handle_of(handle_), bytes.data(), want, &count, nullptr) == 0)
      return last_error();
    bytes = bytes.subspan(count);
  }
  return {};
}

std::error_code File::close() {
  if (handle_ == kNone) return {};
  return ::CloseHandle(handle_of(std::exchange(handle_, kNone))) == 0 ? last_error()
                                                                      : std::error_code();
}

void File::set_changed_now() const {
  // Reading it asks for no right to do so: it is opened once more.
  HANDLE again = ::ReOpenFile(handle_of(handle_), FILE_WRITE_ATTRIBUTES, kShared, 0);
  if (again == INVALID_HANDLE_VALUE) return;
  FILETIME now{};
  ::GetSystemTimeAsFileTime(&now);
  ::SetFileTime(again, nullptr, nullptr, &now);
  ::CloseHandle(again);
}

// A new file has its folder's permissions.
void File::let_readers_of(const std::string& /*folder*/) const {}
void File::set_permissions_like(const std::string& /*path*/) const {}

std::error_code remove_file(const std::string& path) noexcept {
  return ::DeleteFileW(wide_path(path).c_str()) == 0 ? last_error() : std::error_code();
}

std::error_code make_folder(const std::string& path, Access access) {
  const OwnAccess own;
  return ::CreateDirectoryW(wide_path(path).c_str(),
                            access == Access::own ? own.attributes() : nullptr) == 0
             ? last_error()
             : std::error_code();
}

std::error_code make_new_folder(std::string& path) {
  return with_new_name(path,
                       [](const std::string& name) { return make_folder(name, Access::own); });
}

// It has its folder's permissions, which is the user's own.
std::error_code make_private(const std::string& /*path*/) { return {}; }

std::FILE* open_stream(const std::string& path) noexcept {
  return ::_wfopen(wide_path(path).c_str(), L"rb");
}

std::FILE* input_stream() noexcept {
  ::_setmode(::_fileno(stdin), _O_BINARY);
  return stdin;
}

std::optional<std::uint64_t> stream_bytes(std::FILE* stream) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  HANDLE handle = reinterpret_cast<HANDLE>(::_get_osfhandle(::_fileno(stream)));
  const FileFacts facts = facts_of_handle(handle);
  return facts.is_regular ? std::optional(facts.bytes) : std::nullopt;
}

std::filesystem::path long_path(const std::string& path) { return wide_path(path); }

// By Windows' own call: the C++ library's iterator ends at 260 characters.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  WIN32_FIND_DATAW entry;
  HANDLE search = ::FindFirstFileW(wide_path(folder + "/*").c_str(), &entry);
  if (search == INVALID_HANDLE_VALUE) return names;
  do {
    const std::wstring_view name = entry.cFileName;
    if (name != L"." && name != L"..") names.push_back(narrow(name));
  } while (::FindNextFileW(search, &entry) != 0);
  ::FindClose(search);
  return names;
}

bool is_program(const std::string& path) {
  const DWORD attributes = ::GetFileAttributesW(wide_path(path).c_str());
  return attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY) == 0;
}

bool can_use(const std::string& path) {
  constexpr int kReadAndWrite = 6;
  return ::_waccess(wide_path(path).c_str(), kReadAndWrite) == 0;
}

bool forbids_programs(const std::string& /*path*/) { return false; }

std::string cache_folder() { return environment_variable("LOCALAPPDATA").value_or(""); }

std::string usual_temporary_folder() {
  std::array<wchar_t, MAX_PATH + 2> path{};
  std::string folder =
      narrow({path.data(), ::GetTempPathW(static_cast<DWORD>(path.size()), path.data())});
  while (folder.ends_with('\\')) folder.pop_back();
  return folder;
}

}  // namespace fulmen::platform

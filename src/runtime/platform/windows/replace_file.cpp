#include <windows.h>

#include <array>
#include <memory>

#include "runtime/platform/files.h"
#include "runtime/platform/windows/words.h"

namespace fulmen::platform {
namespace {

// The rename of Windows 10, which replaces a file that others have open. Where the disk or the
// system has none, the older one.
bool rename_over(HANDLE file, const std::wstring& to) {
  struct Rename {             // FILE_RENAME_INFO with flags, and room for the longest name
    DWORD flags = 0x1 | 0x2;  // replace, by POSIX's rules
    HANDLE root = nullptr;
    DWORD bytes = 0;
    std::array<wchar_t, 32768> name{};
  };
  const auto rename = std::make_unique<Rename>();
  constexpr auto kFileRenameInfoEx = static_cast<FILE_INFO_BY_HANDLE_CLASS>(22);
  if (to.size() >= rename->name.size()) return false;
  rename->bytes = static_cast<DWORD>(to.size() * sizeof(wchar_t));
  to.copy(rename->name.data(), to.size());
  return ::SetFileInformationByHandle(file, kFileRenameInfoEx, rename.get(), sizeof(Rename)) != 0;
}

// Where a program keeps the old file open: it gets another name, and goes when it is closed. For a
// moment there is none of its name.
bool move_old_aside(const std::wstring& from, const std::wstring& to) {
  const std::wstring aside = to + L".old-" + std::to_wstring(::GetTickCount64());
  if (::MoveFileExW(to.c_str(), aside.c_str(), 0) == 0) return false;
  if (::MoveFileExW(from.c_str(), to.c_str(), 0) == 0) {
    ::MoveFileExW(aside.c_str(), to.c_str(), 0);
    return false;
  }
  ::DeleteFileW(aside.c_str());
  return true;
}

}  // namespace

std::error_code replace_file(const std::string& from, const std::string& to) {
  const std::wstring old_name = wide_path(from), new_name = wide_path(to);
  std::wstring whole(::GetFullPathNameW(new_name.c_str(), 0, nullptr, nullptr), L'\0');
  whole.resize(::GetFullPathNameW(new_name.c_str(), static_cast<DWORD>(whole.size()), whole.data(),
                                  nullptr));
  std::error_code error;
  // Who reads the old file has it open for a moment, a virus scanner the new one.
  constexpr int kTries = 30;
  for (int tries = 0; tries < kTries; ++tries) {
    HANDLE file = ::CreateFileW(old_name.c_str(), DELETE | SYNCHRONIZE,
                                FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, nullptr,
                                OPEN_EXISTING, 0, nullptr);
    if (file != INVALID_HANDLE_VALUE) {
      const bool renamed = rename_over(file, whole);
      ::CloseHandle(file);
      if (renamed) return {};
    }
    if (::MoveFileExW(old_name.c_str(), new_name.c_str(), MOVEFILE_REPLACE_EXISTING) != 0)
      return {};
    const DWORD number = ::GetLastError();
    error = error_of(number);
    if (number != ERROR_SHARING_VIOLATION && number != ERROR_ACCESS_DENIED) return error;
    ::Sleep(10);
  }
  return move_old_aside(old_name, new_name) ? std::error_code() : error;
}

}  // namespace fulmen::platform

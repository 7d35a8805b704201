#include "runtime/platform/windows/words.h"

#include <algorithm>
#include <array>
#include <cerrno>

namespace fulmen::platform {
namespace {

class WindowsErrors final : public std::error_category {
 public:
  const char* name() const noexcept override { return "windows"; }
  std::string message(int number) const override { return error_words(static_cast<DWORD>(number)); }
};

const WindowsErrors kWindowsErrors;

}  // namespace

std::wstring wide(std::string_view text) {
  std::wstring result(text.size(), L'\0');  // no text has more UTF-16 units than bytes
  const int count =
      text.empty() ? 0
                   : ::MultiByteToWideChar(CP_UTF8, 0, text.data(), static_cast<int>(text.size()),
                                           result.data(), static_cast<int>(result.size()));
  result.resize(static_cast<std::size_t>(count));
  return result;
}

std::string narrow(std::wstring_view text) {
  std::string result(text.size() * 3, '\0');
  const int count =
      text.empty()
          ? 0
          : ::WideCharToMultiByte(CP_UTF8, 0, text.data(), static_cast<int>(text.size()),
                                  result.data(), static_cast<int>(result.size()), nullptr, nullptr);
  result.resize(static_cast<std::size_t>(count));
  return result;
}

std::wstring wide_path(std::string_view path) {
  constexpr std::size_t kMostPlain = 240;  // a folder's limit is 248
  std::wstring plain = wide(path);
  std::replace(plain.begin(), plain.end(), L'/', L'\\');
  if (plain.size() <= kMostPlain || plain.starts_with(L"\\\\?\\")) return plain;
  std::wstring whole(::GetFullPathNameW(plain.c_str(), 0, nullptr, nullptr), L'\0');
  whole.resize(
      ::GetFullPathNameW(plain.c_str(), static_cast<DWORD>(whole.size()), whole.data(), nullptr));
  if (whole.starts_with(L"\\\\")) return L"\\\\?\\UNC" + whole.substr(1);
  return L"\\\\?\\" + whole;
}

std::error_code error_of(DWORD number) noexcept {
  struct Pair {
    DWORD windows;
    int generic;
  };
  constexpr std::array kPairs{Pair{ERROR_SUCCESS, 0},
                              Pair{ERROR_FILE_NOT_FOUND, ENOENT},
                              Pair{ERROR_PATH_NOT_FOUND, ENOENT},
                              Pair{ERROR_INVALID_DRIVE, ENOENT},
                              Pair{ERROR_BAD_NETPATH, ENOENT},
                              Pair{ERROR_ACCESS_DENIED, EACCES},
                              Pair{ERROR_ALREADY_EXISTS, EEXIST},
                              Pair{ERROR_FILE_EXISTS, EEXIST},
                              Pair{ERROR_DISK_FULL, ENOSPC},
                              Pair{ERROR_NOT_ENOUGH_MEMORY, ENOMEM},
                              Pair{ERROR_DIRECTORY, ENOTDIR}};
  for (const Pair& pair : kPairs) {
    if (pair.windows == number) return {pair.generic, std::generic_category()};
  }
  return {static_cast<int>(number), kWindowsErrors};
}

std::string error_words(DWORD number) {
  std::array<wchar_t, 512> text{};
  DWORD count = ::FormatMessageW(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS,
                                 nullptr, number, 0, text.data(), text.size(), nullptr);
  while (count > 0 && (text[count - 1] <= L' ' || text[count - 1] == L'.')) --count;
  const std::string words = narrow({text.data(), count});
  return words.empty() ? "error " + std::to_string(number) : words;
}

}  // namespace fulmen::platform

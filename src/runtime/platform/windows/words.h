// Texts, paths and errors between UTF-8 and Windows' own.
#pragma once

#include <windows.h>

#include <string>
#include <string_view>
#include <system_error>

namespace fulmen::platform {

std::wstring wide(std::string_view text);
std::string narrow(std::wstring_view text);

// A path as Windows' calls take it. One of more than 240 characters is made absolute and gets the
// prefix \\?\, without which the system ends at 260.
std::wstring wide_path(std::string_view path);

// The error of that number, as the C library numbers it where it has the like.
std::error_code error_of(DWORD number) noexcept;
inline std::error_code last_error() noexcept { return error_of(::GetLastError()); }

// Windows' words for an error, in one line.
std::string error_words(DWORD number);

}  // namespace fulmen::platform

#include <windows.h>

#include <algorithm>

#include "runtime/platform/files.h"
#include "runtime/platform/windows/words.h"

namespace fulmen::platform {
namespace {

// What follows '[': the pattern after ']', or nothing where the letter is not meant.
std::optional<std::wstring_view> match_set(std::wstring_view set, wchar_t letter) {
  const std::size_t end = set.find(L']', 1);
  if (end == std::wstring_view::npos) return std::nullopt;
  bool meant = false;
  for (std::size_t i = 0; i < end; ++i) {
    const bool range = i + 2 < end && set[i + 1] == L'-';
    meant |= range ? letter >= set[i] && letter <= set[i + 2] : letter == set[i];
    if (range) i += 2;
  }
  return meant ? std::optional(set.substr(end + 1)) : std::nullopt;
}

// Windows' names have no case.
wchar_t folded(wchar_t letter) {
  return letter >= L'A' && letter <= L'Z' ? static_cast<wchar_t>(letter - L'A' + L'a') : letter;
}

bool matches(std::wstring_view pattern, std::wstring_view name) {
  while (!pattern.empty()) {
    const wchar_t first = pattern.front();
    if (first == L'*') {
      for (std::size_t skipped = 0; skipped <= name.size(); ++skipped) {
        if (matches(pattern.substr(1), name.substr(skipped))) return true;
      }
      return false;
    }
    if (name.empty()) return false;
    if (first == L'[') {
      const auto rest = match_set(pattern.substr(1), name.front());
      if (!rest) return false;
      pattern = *rest;
    } else {
      if (first != L'?' && folded(first) != folded(name.front())) return false;
      pattern.remove_prefix(1);
    }
    name.remove_prefix(1);
  }
  return name.empty();
}

bool is_pattern(std::string_view text) {
  return text.find_first_of("*?[") != std::string_view::npos;
}

bool exists(const std::string& path) {
  return ::GetFileAttributesW(wide_path(path).c_str()) != INVALID_FILE_ATTRIBUTES;
}

}  // namespace

std::vector<std::string> matching_files(const std::string& pattern) {
  // Of each part of the path so far, with what separates it from the next.
  std::vector<std::string> found{""};
  std::string_view rest = pattern;
  while (!rest.empty()) {
    const std::size_t length = std::min(rest.find_first_of("/\\"), rest.size());
    const std::string part(rest.substr(0, length)), separator(rest.substr(length, 1));
    rest.remove_prefix(length + separator.size());
    std::vector<std::string> longer;
    for (const std::string& folder : found) {
      if (!is_pattern(part)) {
        longer.push_back(folder + part + separator);
        continue;
      }
      for (const std::string& name : names_in(folder.empty() ? "." : folder)) {
        if (matches_pattern(part, name)) longer.push_back(folder + name + separator);
      }
    }
    found = std::move(longer);
  }
  std::erase_if(found, [](const std::string& path) { return path.empty() || !exists(path); });
  std::sort(found.begin(), found.end());
  return found;
}

bool matches_pattern(const std::string& pattern, const std::string& name) {
  return matches(wide(pattern), wide(name));
}

}  // namespace fulmen::platform

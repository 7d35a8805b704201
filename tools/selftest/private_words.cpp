#include "tools/selftest/private_words.h"

#include <algorithm>
#include <cctype>
#include <ranges>
#include <tuple>

#include "fulmen/printable.h"
#include "runtime/path_list.h"
#include "runtime/platform/system.h"

namespace fulmen::tools {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

void replace(std::string& text, const std::string& word, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos;) {
    const std::size_t end = at + word.size();
    const bool whole = (at == 0 || !is_word(text[at - 1]) || !is_word(word.front())) &&
                       (end == text.size() || !is_word(text[end]));
    if (whole) text.replace(at, word.size(), by);
    at += whole ? by.size() : 1;
  }
}

}  // namespace

PrivateWords::PrivateWords(const std::vector<std::string>& homes, const std::string& user,
                           const std::string& host, std::vector<Folder> folders)
    : folders_(std::move(folders)) {
  for (Folder& folder : folders_) folder.second = "$" + folder.second;
  for (const std::string& home : homes) folders_.emplace_back(home, "~");
  for (std::string& folder : folders_ | std::views::keys) {
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  }
  // "/" is the home of none.
  std::erase_if(folders_, [](const Folder& folder) { return folder.first.size() < 2; });
  std::sort(folders_.begin(), folders_.end(), [](const Folder& a, const Folder& b) {
    return std::tuple(b.first.size(), a) < std::tuple(a.first.size(), b);
  });
  if (!user.empty()) words_.emplace_back(user, "USER");
  if (host.empty()) return;
  words_.emplace_back(host, "HOST");
  // With its domain, and without.
  if (const std::size_t dot = host.find('.'); dot != std::string::npos && dot > 0)
    words_.emplace_back(host.substr(0, dot), "HOST");
}

PrivateWords PrivateWords::of_this_process() {
  std::vector<std::string> homes;
  if (std::string home = platform::home_folder(); !home.empty()) homes.push_back(std::move(home));
  if (const auto home = platform::environment_variable("HOME")) homes.push_back(*home);
  std::vector<Folder> folders;
  for (const char* name : {"FULMEN_CACHE_DIR", "FULMEN_KERNEL_PATH", "XDG_CACHE_HOME", "TMPDIR",
                           "ROCM_PATH", "CUDA_HOME", "CUDA_PATH"}) {
    for (std::string& folder : listed_folders(platform::environment_variable(name).value_or("")))
      folders.emplace_back(std::move(folder), name);
  }
  return {homes, platform::user_name(), platform::host_name(), std::move(folders)};
}

std::string PrivateWords::removed_from(std::string text) const {
  for (const auto& [folder, by] : folders_) replace(text, folder, by);
  for (const auto& [word, by] : words_) replace(text, word, by);
  return printable(text);
}

}  // namespace fulmen::tools

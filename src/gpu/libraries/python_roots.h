// Where Python environments are, for the search of libraries and for `fulmen doctor`, which tells
// of it: both give what they read of the system.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/platform/system.h"

namespace fulmen::gpu {

struct PythonHints {
  std::function<std::string(const char* name)> variable;  // empty: not set
  std::function<std::string(const char* name)> program;   // its path; empty: not in PATH
  platform::System system = platform::kThisSystem;
};

// The folders where pip puts packages: an active environment's, those of the python3 in PATH,
// root's on Debian, users'. A folder may have a '*'.
inline std::vector<std::string> python_roots(const PythonHints& hints) {
  namespace fs = std::filesystem;
  std::vector<std::string> roots;
  const auto add = [&](const char* variable, const char* below) {
    if (const std::string folder = hints.variable(variable); !folder.empty())
      roots.push_back(folder + below);
  };
  add("VIRTUAL_ENV", "");
  add("CONDA_PREFIX", "");
  if (hints.system == platform::System::windows) {
    // The one in PATH has no folder of programs of its own.
    if (const fs::path python = hints.program("python"); !python.empty())
      roots.push_back(python.parent_path().string());
    add("LOCALAPPDATA", "/Programs/Python/Python3*");
    add("APPDATA", "/Python/Python3*");
    return roots;
  }
  if (const fs::path python = hints.program("python3"); !python.empty()) {
    fs::path root = python.parent_path().parent_path();
    // pyenv's python3 is a script that looks for the one that is meant.
    if (python.parent_path().filename() == "shims") root /= "versions/*";
    roots.push_back(root.string());
  }
  roots.emplace_back("/usr/local");
  add("HOME", "/.local");
  return roots;
}

// Below such a root.
inline constexpr const char* kSitePackages[] = {
    "/lib/python3*/site-packages", "/lib/python3*/dist-packages", "/lib/python3/dist-packages",
    "/Lib/site-packages"};  // Windows'

// The folder of packages in which a library lies, as fulmen/libfulmen.so of a wheel does; empty
// where it lies elsewhere.
inline std::string site_of(const std::filesystem::path& library) {
  const std::filesystem::path site = library.parent_path().parent_path();
  return site.filename() == "site-packages" || site.filename() == "dist-packages" ? site.string()
                                                                                  : std::string();
}

// The root of the environment of such a folder, <root>/lib/python3.11/site-packages on Linux.
inline std::string root_of(const std::filesystem::path& site) {
  return site.parent_path().parent_path().parent_path().string();
}

}  // namespace fulmen::gpu

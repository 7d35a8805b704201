#include "gpu/drivers/library_search.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>
#include <link.h>

#include <algorithm>
#include <filesystem>

#include "gpu/compile/run_program.h"
#include "runtime/environment.h"

namespace fulmen::gpu {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> expand(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

// Where pip puts packages: of an active environment, of the python3 in PATH, by root on Debian, by users. May have a '*'.
std::vector<std::string> python_roots() {
  std::vector<std::string> roots;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (std::string root = environment(name); !root.empty()) roots.push_back(std::move(root));
  }
  if (const fs::path python = find_program("python3"); !python.empty()) {
    fs::path root = python.parent_path().parent_path();
    // pyenv's python3 is a script that looks for the one that is meant.
    if (python.parent_path().filename() == "shims") root /= "versions/*";
    roots.push_back(root.string());
  }
  roots.emplace_back("/usr/local");
  if (const std::string home = environment("HOME"); !home.empty()) roots.push_back(home + "/.local");
  return roots;
}

// The folder of packages that this library is in itself, where it is in one.
std::string own_site() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&find_library), &info) == 0 || info.dli_fname == nullptr) return {};
  const fs::path site = fs::path(info.dli_fname).parent_path().parent_path();
  return site.filename() == "site-packages" || site.filename() == "dist-packages" ? site.string() : std::string();
}

// The folders that hold Python packages of the environments in reach.
std::vector<std::string> site_packages() {
  std::vector<std::string> folders;
  const auto add = [&](std::string path) {
    if (!path.empty() && std::find(folders.begin(), folders.end(), path) == folders.end()) folders.push_back(std::move(path));
  };
  add(own_site());
  for (const std::string& root : python_roots()) {
    for (const char* kind : {"/lib/python3*/site-packages", "/lib/python3*/dist-packages", "/lib/python3/dist-packages"}) {
      for (std::string& path : expand(root + kind)) add(std::move(path));
    }
  }
  return folders;
}

std::vector<std::string> home_folders(const LibrarySearch& search) {
  std::vector<std::string> folders;
  for (const std::string& variable : search.home_variables) {
    const std::string home = environment(variable.c_str());
    if (home.empty()) continue;
    for (const char* part : {"/lib64", "/lib"}) folders.push_back(home + part);
  }
  return folders;
}

std::vector<std::string> usual_folders(const LibrarySearch& search) {
  std::vector<std::string> folders;
  for (const std::string& pattern : search.system_folders) {
    for (std::string& path : expand(pattern)) folders.push_back(std::move(path));
  }
  for (std::string& path : find_in_python_packages(search.python_folders)) folders.push_back(std::move(path));
  return folders;
}

FoundLibrary describe(void* handle, const std::string& name) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && map != nullptr && map->l_name[0] != '\0')
    return {handle, map->l_name};
  return {handle, name};
}

// Files that are there and cannot be loaded are added to problems, in the loader's words.
void* open_in(const std::vector<std::string>& folders, const std::vector<std::string>& names, std::string& problems) {
  for (const std::string& folder : folders) {
    for (const std::string& name : names) {
      const std::string path = fmt::format("{}/{}", folder, name);
      std::error_code error;
      if (!fs::exists(path, error)) continue;
      if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
      problems += fmt::format("; {}", dlerror());
    }
  }
  return nullptr;
}

void* open_in_loaders_path(const std::vector<std::string>& names, std::string& problems) {
  for (const std::string& name : names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    // "libx.so.1: cannot open shared object file: ..." says that it is not there; anything else is worth telling.
    const std::string error = dlerror();
    if (!error.starts_with(name + ": cannot open")) problems += "; " + error;
  }
  return nullptr;
}

// Where find_library looks, in words: also folders that do not exist here, as somebody may wonder.
std::string places(const LibrarySearch& search) {
  std::vector<std::string> list;
  for (const std::string& variable : search.home_variables) {
    const std::string value = environment(variable.c_str());
    list.push_back(fmt::format("${} ({})", variable, value.empty() ? "not set" : value));
  }
  list.emplace_back("the loader's path");
  list.insert(list.end(), search.system_folders.begin(), search.system_folders.end());
  if (!search.python_folders.empty()) {
    const std::vector<std::string> sites = site_packages();
    list.push_back(fmt::format("{} of {}", fmt::join(search.python_folders, " and "),
                               sites.empty() ? "Python's packages (there are none)" : fmt::format("{}", fmt::join(sites, ", "))));
  }
  return fmt::format("{}", fmt::join(list, ", "));
}

}  // namespace

std::vector<std::string> find_in_python_packages(const std::vector<std::string>& patterns) {
  std::vector<std::string> found;
  for (const std::string& site : site_packages()) {
    for (const std::string& pattern : patterns) {
      for (std::string& path : expand(fmt::format("{}/{}", site, pattern))) found.push_back(std::move(path));
    }
  }
  return found;
}

Result<FoundLibrary> find_library(const LibrarySearch& search) {
  for (const std::string& name : search.names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL)) return describe(handle, name);
  }
  std::string problems;
  void* handle = open_in(home_folders(search), search.names, problems);
  if (handle == nullptr) handle = open_in_loaders_path(search.names, problems);
  if (handle == nullptr) handle = open_in(usual_folders(search), search.names, problems);
  if (handle != nullptr) return describe(handle, search.names.front());
  return Status(StatusCode::unavailable, fmt::format("{} not found: looked in {}{}. {}", fmt::join(search.names, ", "),
                                                     places(search), problems, search.install));
}

}  // namespace fulmen::gpu

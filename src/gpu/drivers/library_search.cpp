#include "gpu/drivers/library_search.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <glob.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "gpu/compile/run_program.h"

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

// The folders that hold Python packages of the environments in reach.
std::vector<std::string> site_packages() {
  std::vector<std::string> roots;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') roots.emplace_back(value);
  }
  if (const std::string python = find_program("python3"); !python.empty()) {
    roots.push_back(fs::path(python).parent_path().parent_path().string());
  }
  std::vector<std::string> folders;
  for (const std::string& root : roots) {
    for (const char* kind : {"/lib/python3*/site-packages", "/lib/python3*/dist-packages", "/lib/python3/dist-packages"}) {
      for (std::string& path : expand(root + kind)) {
        if (std::find(folders.begin(), folders.end(), path) == folders.end()) folders.push_back(std::move(path));
      }
    }
  }
  return folders;
}

std::vector<std::string> folders_of(const LibrarySearch& search) {
  std::vector<std::string> folders;
  for (const std::string& variable : search.home_variables) {
    const char* home = std::getenv(variable.c_str());
    if (home == nullptr || *home == '\0') continue;
    for (const char* part : {"/lib64", "/lib"}) folders.push_back(home + std::string(part));
  }
  for (const std::string& pattern : search.system_folders) {
    for (std::string& path : expand(pattern)) folders.push_back(std::move(path));
  }
  for (const std::string& site : site_packages()) {
    for (const std::string& part : search.python_folders) {
      for (std::string& path : expand(site + "/" + part)) folders.push_back(std::move(path));
    }
  }
  return folders;
}

FoundLibrary describe(void* handle, const std::string& name) {
  const link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name[0] != '\0') return {handle, map->l_name};
  return {handle, name};
}

}  // namespace

Result<FoundLibrary> find_library(const LibrarySearch& search) {
  std::string problems;
  for (const std::string& name : search.names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL)) return describe(handle, name);
  }
  for (const std::string& name : search.names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return describe(handle, name);
  }
  const std::vector<std::string> folders = folders_of(search);
  for (const std::string& folder : folders) {
    for (const std::string& name : search.names) {
      const std::string path = folder + "/" + name;
      std::error_code error;
      if (!fs::exists(path, error)) continue;
      if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return describe(handle, path);
      problems += fmt::format("; {}", dlerror());
    }
  }
  std::string variables;
  for (const std::string& variable : search.home_variables) {
    const char* value = std::getenv(variable.c_str());
    variables += fmt::format(", ${} ({})", variable, value != nullptr && *value != '\0' ? value : "not set");
  }
  return Status(StatusCode::unavailable,
                fmt::format("{} not found: looked in the loader's path{}{}{}{}. {}", fmt::join(search.names, ", "), variables,
                            folders.empty() ? "" : ", ", fmt::join(folders, ", "), problems, search.install));
}

}  // namespace fulmen::gpu

#include "gpu/libraries/library_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "gpu/libraries/python_roots.h"
#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "runtime/platform/files.h"
#include "runtime/run_program.h"

namespace fulmen::gpu {
namespace {

namespace fs = std::filesystem;

using platform::matching_files;
using platform::Opening;

std::vector<std::string> roots_here() {
  return gpu::python_roots({environment, [](const char* name) { return find_program(name); }});
}

// The folder of packages that contains this library, if one does.
std::string own_site() {
  return site_of(platform::library_that_holds(reinterpret_cast<const void*>(&find_library)));
}

void add_once(std::vector<std::string>& folders, std::string path) {
  if (!path.empty() && std::find(folders.begin(), folders.end(), path) == folders.end())
    folders.push_back(std::move(path));
}

// The folders that hold Python packages of the environments in reach.
std::vector<std::string> site_packages() {
  std::vector<std::string> folders;
  add_once(folders, own_site());
  for (const std::string& root : roots_here()) {
    for (const char* kind : kSitePackages) {
      for (std::string& path : matching_files(root + kind)) add_once(folders, std::move(path));
    }
  }
  return folders;
}

// The roots of these environments.
std::vector<std::string> environments() {
  std::vector<std::string> roots;
  if (const std::string site = own_site(); !site.empty()) add_once(roots, root_of(site));
  for (const std::string& pattern : roots_here()) {
    for (std::string& root : matching_files(pattern)) add_once(roots, std::move(root));
  }
  return roots;
}

std::vector<std::string> home_folders(const LibrarySearch& search) {
  std::vector<std::string> folders;
  for (const std::string& variable : search.home_variables) {
    const std::string home = environment(variable.c_str());
    if (home.empty()) continue;
    for (const std::string& part : search.home_parts) folders.push_back(home + part);
  }
  return folders;
}

std::vector<std::string> usual_folders(const LibrarySearch& search) {
  std::vector<std::string> folders;
  for (const std::string& pattern : search.system_folders) {
    std::vector<std::string> paths = matching_files(pattern);
    sort_newest_first(paths);
    folders.insert(folders.end(), paths.begin(), paths.end());
  }
  for (std::string& path : find_in_python_packages(search.python_folders))
    folders.push_back(std::move(path));
  for (const std::string& folder : search.environment_folders) {
    for (const std::string& root : environments())
      folders.push_back(fmt::format("{}/{}", root, folder));
  }
  return folders;
}

FoundLibrary describe(void* handle, const std::string& name) {
  const std::string path = platform::library_path(handle);
  return {handle, path.empty() ? name : path};
}

bool is_pattern(const std::string& name) { return name.find_first_of("*[") != std::string::npos; }

// The files of a folder that a name means.
std::vector<std::string> files_in(const std::string& folder, const std::string& name) {
  std::string path = fmt::format("{}/{}", folder, name);
  if (is_pattern(name)) {
    std::vector<std::string> files = matching_files(path);
    std::reverse(files.begin(), files.end());
    return files;
  }
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  return {std::move(path)};
}

// The paths of loaded libraries of this file's name: the loader itself compares sonames, which
// bundled copies need not have.
std::vector<std::string> loaded_files(const std::string& name) {
  std::vector<std::string> files;
  visit_libraries([&](const platform::LoadedLibrary& library) {
    const std::string path = library.path();
    if (platform::matches_pattern(name, fs::path(path).filename().string())) files.push_back(path);
    return false;
  });
  return files;
}

// One search: the library that was opened, and why other files were not, in the loader's words.
class Opener {
 public:
  explicit Opener(const LibrarySearch& search) : search_(search) {}
  const std::string& problems() const noexcept { return problems_; }

  void* loaded() {
    for (const std::string& name : search_.names) {
      platform::OpeningError error;
      if (void* handle =
              is_pattern(name) ? nullptr : accept(open_library(name, Opening::if_loaded, error)))
        return handle;
      for (const std::string& file : loaded_files(name)) {
        if (void* handle = accept(open_library(file, Opening::if_loaded, error))) return handle;
      }
    }
    return nullptr;
  }
  void* in(const std::vector<std::string>& folders) {
    for (const std::string& folder : folders) {
      for (const std::string& name : search_.names) {
        for (const std::string& file : files_in(folder, name)) {
          platform::OpeningError error;
          void* handle = open_library(file, Opening::usual, error);
          if (handle == nullptr) problems_ += "; " + error.words;
          if (void* accepted = accept(handle)) return accepted;
        }
      }
    }
    return nullptr;
  }
  void* in_loaders_path() {
    for (const std::string& name : search_.names) {
      if (is_pattern(name)) continue;
      platform::OpeningError error;
      void* handle = open_library(name, Opening::usual, error);
      // That it is not there is not worth telling; anything else is.
      if (handle == nullptr && !error.is_absent) problems_ += "; " + error.words;
      if (void* accepted = accept(handle)) return accepted;
    }
    return nullptr;
  }

 private:
  // The handle, or null where its library is a refused release.
  void* accept(void* handle) {
    if (handle == nullptr || search_.refused.empty()) return handle;
    const std::string name = platform::library_name(handle);
    if (std::find(search_.refused.begin(), search_.refused.end(), name) == search_.refused.end())
      return handle;
    problems_ +=
        fmt::format("; {} is {}, which does not serve", platform::library_path(handle), name);
    close_library(handle);
    return nullptr;
  }

  const LibrarySearch& search_;
  std::string problems_;
};

// Returns the names as messages say them, with a wheel's hash as "-*.so".
std::vector<std::string> readable(std::vector<std::string> names) {
  for (std::string& name : names) {
    if (const std::size_t at = name.find(kWheelHash); at != std::string::npos)
      name.replace(at, kWheelHash.size(), "-*.so");
  }
  return names;
}

std::vector<std::string> folders_beside_this_library(const LibrarySearch& search) {
  std::vector<std::string> folders;
  const std::string site = own_site();
  for (const std::string& pattern : search.python_folders) {
    if (site.empty()) break;
    for (std::string& path : matching_files(fmt::format("{}/{}", site, pattern)))
      folders.push_back(std::move(path));
  }
  return folders;
}

// Says in words where find_library looks, folders that do not exist here included.
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
                               sites.empty() ? "Python's packages (there are none)"
                                             : fmt::format("{}", fmt::join(sites, ", "))));
  }
  for (const std::string& folder : search.environment_folders)
    list.push_back(fmt::format("{} of {}", folder, fmt::join(environments(), ", ")));
  return fmt::format("{}", fmt::join(list, ", "));
}

}  // namespace

std::vector<std::string> find_in_python_packages(const std::vector<std::string>& patterns) {
  std::vector<std::string> found;
  for (const std::string& site : site_packages()) {
    for (const std::string& pattern : patterns) {
      for (std::string& path : matching_files(fmt::format("{}/{}", site, pattern)))
        found.push_back(std::move(path));
    }
  }
  return found;
}

Result<FoundLibrary> find_library(const LibrarySearch& search) {
  Opener opener(search);
  void* handle = opener.loaded();
  if (handle == nullptr) handle = opener.in(home_folders(search));
  if (handle == nullptr) handle = opener.in(folders_beside_this_library(search));
  if (handle == nullptr) handle = opener.in_loaders_path();
  if (handle == nullptr) handle = opener.in(usual_folders(search));
  if (handle != nullptr) return describe(handle, search.names.front());
  return Status(
      StatusCode::unavailable,
      fmt::format("{} not found: looked in {}{}. {}", fmt::join(readable(search.names), ", "),
                  places(search), opener.problems(), search.install));
}

}  // namespace fulmen::gpu

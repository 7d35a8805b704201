#include "gpu/libraries/library_search.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>
#include <glob.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "runtime/run_program.h"

namespace fulmen::gpu {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> expand(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

// The folders where pip puts packages: an active environment's, those of the python3 in PATH,
// root's on Debian, users'. A folder may have a '*'.
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
  if (const std::string home = environment("HOME"); !home.empty())
    roots.push_back(home + "/.local");
  return roots;
}

// The folder of packages that contains this library, if one does.
std::string own_site() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&find_library), &info) == 0 || info.dli_fname == nullptr)
    return {};
  const fs::path site = fs::path(info.dli_fname).parent_path().parent_path();
  return site.filename() == "site-packages" || site.filename() == "dist-packages" ? site.string()
                                                                                  : std::string();
}

void add_once(std::vector<std::string>& folders, std::string path) {
  if (!path.empty() && std::find(folders.begin(), folders.end(), path) == folders.end())
    folders.push_back(std::move(path));
}

// The folders that hold Python packages of the environments in reach.
std::vector<std::string> site_packages() {
  std::vector<std::string> folders;
  add_once(folders, own_site());
  for (const std::string& root : python_roots()) {
    for (const char* kind : {"/lib/python3*/site-packages", "/lib/python3*/dist-packages",
                             "/lib/python3/dist-packages", "/Lib/site-packages"}) {  // Windows'

      for (std::string& path : expand(root + kind)) add_once(folders, std::move(path));
    }
  }
  return folders;
}

// The roots of these environments. Linux has packages in <root>/lib/python3.11/site-packages.
std::vector<std::string> environments() {
  std::vector<std::string> roots;
  if (const std::string site = own_site(); !site.empty())
    add_once(roots, fs::path(site).parent_path().parent_path().parent_path().string());
  for (const std::string& pattern : python_roots()) {
    for (std::string& root : expand(pattern)) add_once(roots, std::move(root));
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
    std::vector<std::string> paths = expand(pattern);
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
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && map != nullptr &&
      map->l_name[0] != '\0')
    return {handle, map->l_name};
  return {handle, name};
}

bool is_pattern(const std::string& name) { return name.find_first_of("*[") != std::string::npos; }

// The files of a folder that a name means.
std::vector<std::string> files_in(const std::string& folder, const std::string& name) {
  std::string path = fmt::format("{}/{}", folder, name);
  if (is_pattern(name)) {
    std::vector<std::string> files = expand(path);
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
  struct Search {
    const std::string& name;
    std::vector<std::string> files;
  } search{name, {}};
  const auto compare = [](dl_phdr_info* info, std::size_t, void* pointer) {
    auto& s = *static_cast<Search*>(pointer);
    if (fnmatch(s.name.c_str(), fs::path(info->dlpi_name).filename().c_str(), 0) == 0)
      s.files.emplace_back(info->dlpi_name);
    return 0;
  };
  visit_libraries(compare, &search);
  return search.files;
}

std::string soname(const link_map& map) {
  const char* strings = nullptr;
  const ElfW(Dyn)* name = nullptr;
  for (const ElfW(Dyn)* entry = map.l_ld; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): ELF gives addresses as numbers
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_SONAME) name = entry;
  }
  if (strings == nullptr || name == nullptr) return {};
  // glibc has put the library's address into the entry, musl and some processors' glibc have not.
  const auto at = reinterpret_cast<std::uintptr_t>(strings);
  return (at < map.l_addr ? strings + map.l_addr : strings) + name->d_un.d_val;
}

// One search: the library that was opened, and why other files were not, in the loader's words.
class Opener {
 public:
  explicit Opener(const LibrarySearch& search) : search_(search) {}
  const std::string& problems() const noexcept { return problems_; }

  void* loaded() {
    for (const std::string& name : search_.names) {
      if (void* handle =
              is_pattern(name) ? nullptr : accept(open_library(name.c_str(), kFlags | RTLD_NOLOAD)))
        return handle;
      for (const std::string& file : loaded_files(name)) {
        if (void* handle = accept(open_library(file.c_str(), kFlags | RTLD_NOLOAD))) return handle;
      }
    }
    return nullptr;
  }
  void* in(const std::vector<std::string>& folders) {
    for (const std::string& folder : folders) {
      for (const std::string& name : search_.names) {
        for (const std::string& file : files_in(folder, name)) {
          void* handle = open_library(file.c_str(), kFlags);
          if (handle == nullptr) problems_ += fmt::format("; {}", dlerror());
          if (void* accepted = accept(handle)) return accepted;
        }
      }
    }
    return nullptr;
  }
  void* in_loaders_path() {
    for (const std::string& name : search_.names) {
      if (is_pattern(name)) continue;
      void* handle = open_library(name.c_str(), kFlags);
      if (handle == nullptr) {
        // "libx.so.1: cannot open shared object file: ..." says that it is not there; anything else
        // is worth telling.
        const std::string error = dlerror();
        if (!error.starts_with(name + ": cannot open")) problems_ += "; " + error;
      }
      if (void* accepted = accept(handle)) return accepted;
    }
    return nullptr;
  }

 private:
  static constexpr int kFlags = RTLD_NOW | RTLD_LOCAL;

  // The handle, or null where its library is a refused release.
  void* accept(void* handle) {
    link_map* map = nullptr;
    if (handle == nullptr || search_.refused.empty() ||
        dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0 || map == nullptr) {
      return handle;
    }
    const std::string name = soname(*map);
    if (std::find(search_.refused.begin(), search_.refused.end(), name) == search_.refused.end())
      return handle;
    problems_ += fmt::format("; {} is {}, which does not serve", map->l_name, name);
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
    for (std::string& path : expand(fmt::format("{}/{}", site, pattern)))
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
      for (std::string& path : expand(fmt::format("{}/{}", site, pattern)))
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

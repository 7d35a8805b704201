#include "tools/doctor/vendor_libraries.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "gpu/libraries/python_roots.h"
#include "runtime/path_list.h"
#include "runtime/platform/files.h"

namespace fulmen::tools {
namespace {

namespace fs = std::filesystem;

using gpu::kRocmLayouts;
using gpu::RocmLayout;

struct Folder {
  std::string pattern, owner;
  bool in_python = false;
};

// The environment of the library itself comes first.
std::vector<std::string> roots_of_python(const SystemFacts& facts) {
  std::vector<std::string> roots;
  if (const std::string site = gpu::site_of(facts.own_library); !site.empty())
    roots.push_back(gpu::root_of(site));
  const auto program = [&](const char* name) {
    for (const std::string& folder : listed_folders(facts.environment("PATH"), ':')) {
      if (std::string path = fmt::format("{}/{}", folder, name); facts.exists(path)) return path;
    }
    return std::string();
  };
  for (std::string& root :
       gpu::python_roots({[&](const char* name) { return facts.environment(name); }, program,
                          platform::System::linux}))
    roots.push_back(std::move(root));
  return roots;
}

// The libraries of packages in a folder of Python packages.
void add_packages(const std::string& site, std::vector<Folder>& folders) {
  for (const RocmLayout& layout : kRocmLayouts) {
    if (layout.below == RocmLayout::Below::packages)
      folders.push_back({fmt::format("{}/{}", site, layout.folder), layout.owner, true});
  }
}

// In the order of the library's search.
std::vector<Folder> folders_of_rocm(const SystemFacts& facts) {
  std::vector<Folder> folders;
  for (const char* variable : {"ROCM_PATH", "HIP_PATH"}) {
    const std::string home = facts.environment(variable);
    if (home.empty()) continue;
    for (const char* part : {"/lib64", "/lib"})
      folders.push_back({home + part, std::string("$") + variable});
  }
  if (const std::string site = gpu::site_of(facts.own_library); !site.empty())
    add_packages(site, folders);
  for (const std::string& folder : listed_folders(facts.environment("LD_LIBRARY_PATH"), ':'))
    folders.push_back({folder, "$LD_LIBRARY_PATH"});
  const std::vector<std::string> roots = roots_of_python(facts);
  for (const RocmLayout& layout : kRocmLayouts) {
    const bool packages = layout.below == RocmLayout::Below::packages;
    if (!packages && layout.below != RocmLayout::Below::environment) {
      folders.push_back({layout.folder, layout.owner});
      continue;
    }
    for (const std::string& root : roots) {
      if (!packages) {
        folders.push_back({fmt::format("{}/{}", root, layout.folder), layout.owner});
        continue;
      }
      for (const char* site : gpu::kSitePackages)
        folders.push_back({fmt::format("{}{}/{}", root, site, layout.folder), layout.owner, true});
    }
  }
  return folders;
}

// Returns true for a name that the search takes, and the longer ones of the files behind those:
// libhiprtc.so.7, libhiprtc.so.7.1.70100, libhiprtc.so, libhiprtc-1a2b3c4d.so.
bool is_known(const std::string& file, const gpu::RocmLibrary& library) {
  const std::string stem = library.stem,
                    release = fmt::format("{}.so.[{}]", stem, library.releases);
  const std::string patterns[] = {stem + ".so", release, release + ".*",
                                  stem + std::string(gpu::kWheelHash)};
  return std::any_of(std::begin(patterns), std::end(patterns), [&](const std::string& pattern) {
    return platform::matches_pattern(pattern, file);
  });
}

std::string file_name(const std::string& path) { return fs::path(path).filename().string(); }

// The file behind symbolic links; empty where it is not there.
std::string real_file(const SystemFacts& facts, const std::string& path) {
  std::error_code error;
  const fs::path real = fs::canonical(facts.root + path, error);
  return error ? std::string() : real.string();
}

}  // namespace

std::vector<LibraryFile> rocm_libraries(const SystemFacts& facts, const gpu::RocmLibrary& library) {
  std::vector<LibraryFile> files;
  std::set<std::string> seen;
  for (const Folder& folder : folders_of_rocm(facts)) {
    // libhiprtc-builtins.so does not count: it is code that hipRTC reads.
    for (const char* rest : {".so*", "-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]*.so*"}) {
      std::vector<std::string> paths =
          facts.matches(fmt::format("{}/{}{}", folder.pattern, library.stem, rest));
      gpu::sort_newest_first(paths);
      for (const std::string& path : paths) {
        const std::string real = real_file(facts, path);
        if (real.empty() || !seen.insert(real).second) continue;
        files.push_back({path, folder.owner, folder.in_python, is_known(file_name(path), library)});
      }
    }
  }
  return files;
}

std::string found_and_taken(const SystemFacts& facts, const gpu::RocmLibrary& library,
                            const std::vector<LibraryFile>& files) {
  std::string loaded, taken;
  for (const std::string& path : mapped_libraries(facts, library.stem)) {
    if (loaded.empty() && is_known(file_name(path), library)) loaded = path;
  }
  const std::string real = loaded.empty() ? std::string() : real_file(facts, loaded);
  std::vector<std::string> told;
  for (const LibraryFile& file : files) {
    if (!file.known_name) continue;
    const bool is_taken = taken.empty() && (loaded.empty() || file.path == loaded ||
                                            (!real.empty() && real_file(facts, file.path) == real));
    if (is_taken) taken = file.path;
    told.push_back(
        fmt::format("{} ({}{})", file.path, file.owner, is_taken ? "; this one is taken" : ""));
  }
  if (!loaded.empty() && taken.empty())
    told.push_back(fmt::format("{} (the process has loaded it; this one is taken)", loaded));
  return joined(told);
}

std::vector<std::string> mapped_libraries(const SystemFacts& facts, const std::string& name) {
  std::set<std::string> paths;
  std::istringstream maps(
      facts.read(fmt::format("/proc/{}/maps", facts.process), std::size_t{16} << 20));
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find('/');
    if (at == std::string::npos) continue;
    std::string path = line.substr(at);
    if (fs::path(path).filename().string().starts_with(name)) paths.insert(std::move(path));
  }
  return {paths.begin(), paths.end()};
}

std::vector<std::string> clangs(const SystemFacts& facts) {
  std::vector<std::string> found;
  std::set<std::string> seen;  // /bin is /usr/bin, and clang++ one of the others
  const auto add = [&](const std::string& path) {
    std::error_code error;
    const fs::path real = fs::canonical(facts.root + path, error);
    if (!error && seen.insert(real.string()).second) found.push_back(path);
  };
  if (const std::string home = facts.environment("ROCM_PATH"); !home.empty()) {
    add(home + "/llvm/bin/amdclang++");
    add(home + "/llvm/bin/clang++");
  }
  const std::vector<std::string> folders = listed_folders(facts.environment("PATH"), ':');
  const auto add_by_name = [&](const char* name) {
    for (const std::string& folder : folders) add(folder + "/" + name);
  };
  add_by_name("amdclang++");
  add("/opt/rocm/llvm/bin/clang++");
  for (const char* name : {"clang++-19", "clang++-22", "clang++-21", "clang++-20", "clang++-18",
                           "clang++-17", "clang++-16", "clang++"}) {
    add_by_name(name);
  }
  return found;
}

std::string paths_of(const std::vector<LibraryFile>& files) {
  std::vector<std::string> paths;
  for (const LibraryFile& file : files) paths.push_back(file.path);
  return joined(paths);
}

}  // namespace fulmen::tools

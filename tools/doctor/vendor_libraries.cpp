#include "tools/doctor/vendor_libraries.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

namespace fulmen::tools {
namespace {

namespace fs = std::filesystem;

// Below a Python environment's folder of packages, as PyTorch's ROCm wheels and AMD's own ones have
// it.
constexpr const char* kPackageFolders[] = {"torch/lib", "torch.libs", "_rocm_sdk_*/lib"};

std::vector<std::string> system_folders(const SystemFacts& facts) {
  std::vector<std::string> folders;
  for (const char* variable : {"ROCM_PATH", "HIP_PATH"}) {
    if (const std::string home = facts.environment(variable); !home.empty()) {
      folders.push_back(home + "/lib64");
      folders.push_back(home + "/lib");
    }
  }
  std::istringstream path(facts.environment("LD_LIBRARY_PATH"));
  for (std::string folder; std::getline(path, folder, ':');) {
    if (!folder.empty()) folders.push_back(folder);
  }
  for (const char* folder : {"/opt/rocm/lib", "/opt/rocm-*/lib", "/usr/lib/*-linux-gnu",
                             "/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/lib/wsl/lib"}) {
    folders.emplace_back(folder);
  }
  return folders;
}

std::vector<std::string> python_folders(const SystemFacts& facts) {
  std::vector<std::string> roots;
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (std::string root = facts.environment(variable); !root.empty())
      roots.push_back(std::move(root));
  }
  roots.emplace_back("/usr/local");
  if (const std::string home = facts.environment("HOME"); !home.empty())
    roots.push_back(home + "/.local");
  std::vector<std::string> folders;
  for (const std::string& root : roots) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      for (const char* folder : kPackageFolders)
        folders.push_back(fmt::format("{}/lib/python3*/{}/{}", root, packages, folder));
    }
  }
  return folders;
}

// Returns true for libhiprtc.so.7, .so.6, .so without a version, or with a wheel's hash, and for
// libamdhip64.so.5. Longer versions are the files behind these.
bool is_known(const std::string& file, const std::string& name) {
  std::vector<std::string> patterns{
      name + ".so", name + ".so.[67]", name + ".so.[67].*",
      name + "-[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]*.so*"};
  if (name == "libamdhip64") patterns.insert(patterns.end(), {name + ".so.5", name + ".so.5.*"});
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), file.c_str(), 0) == 0;
  });
}

}  // namespace

std::vector<LibraryFile> rocm_libraries(const SystemFacts& facts, const std::string& name) {
  std::vector<LibraryFile> files;
  std::set<std::string> seen;
  const auto look = [&](const std::vector<std::string>& folders, bool in_python) {
    for (const std::string& folder : folders) {
      // libhiprtc-builtins.so does not count: it is code that hipRTC reads.
      for (const char* rest : {".so*", "-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]*.so*"}) {
        for (const std::string& path : facts.matches(fmt::format("{}/{}{}", folder, name, rest))) {
          std::error_code error;
          const fs::path real = fs::canonical(facts.root + path, error);
          if (error || !seen.insert(real.string()).second) continue;
          files.push_back({path, in_python, is_known(fs::path(path).filename().string(), name)});
        }
      }
    }
  };
  look(system_folders(facts), false);
  look(python_folders(facts), true);
  return files;
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
  std::vector<std::string> folders;
  std::istringstream path(facts.environment("PATH"));
  for (std::string folder; std::getline(path, folder, ':');) folders.push_back(folder);
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

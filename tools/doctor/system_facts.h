// The system as `fulmen doctor` sees it. Tests give a folder that is laid out as a system's root,
// and answers of their own.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fulmen/backend.h"

namespace fulmen::tools {

struct SystemFacts {
  std::string root;            // put before every path that is looked at; empty: this system
  std::string process;         // whose libraries are looked at: "self", or a number
  std::vector<int> group_ids;  // this process's
  std::string user;            // its name, empty where it has none; root may do everything
  bool is_root = false;
  std::function<std::string(const std::string& name)> environment;  // empty: not set
  // True: this process may read and write it. The path is without the root.
  std::function<bool(const std::string& path)> can_use;
  std::function<bool(const std::string& folder)> forbids_programs;  // mounted noexec
  // The group that a file belongs to, -1: unknown.
  std::function<int(const std::string& path)> group_of;
  // The library's answers.
  std::vector<DeviceInfo> devices;
  std::string default_device;
  std::string cache_folder;
  std::string own_library;  // the library's file, in which a wheel's packages are found
  Support blas;

  bool exists(const std::string& path) const;
  // The first `most` bytes of a text file; empty where it cannot be read.
  std::string read(const std::string& path, std::size_t most = std::size_t{1} << 20) const;
  // Names in a folder, sorted; none where it is not there.
  std::vector<std::string> names(const std::string& folder) const;
  // Returns the paths, without the root, that match a pattern with '*' or '[' in its components.
  std::vector<std::string> matches(const std::string& pattern) const;
  // The name that /etc/group has for a group, or its number.
  std::string group_name(int id) const;
  // Returns true if /etc/group has the user in the group.
  bool listed_in_group(int id) const;
  bool in_group(int id) const;
  // PCI devices of a vendor that are display or compute devices: "1002:744c".
  std::vector<std::string> pci_gpus(const std::string& vendor) const;
  bool is_wsl() const;
  bool in_container() const;
};

// The facts of this system.
SystemFacts facts_of_this_system(const std::string& process);

// "a, b and c"-like lists are for prose; this is "a, b, c".
std::string joined(const std::vector<std::string>& list);

}  // namespace fulmen::tools

// Code for this processor that the host's C++ compiler makes while the process runs. Who can do it
// gives a HostCodeMaker to who has the source.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fulmen/status.h"

namespace fulmen {

struct HostSource {
  std::string name;                // for messages and the cache's list
  std::string instruction_set;     // beside the name
  std::vector<std::string> flags;  // which instructions there are
  std::string text;
  std::string symbol;  // a function of the source, with C's name
};

// The function in a shared object, which is loaded for as long as this lives.
struct HostCode {
  std::shared_ptr<void> library;
  void* function = nullptr;
};

// The same object for the same source. Errors: unavailable, there is no compiler; else that of the
// compiler or the loader.
using HostCodeMaker = Result<HostCode> (*)(const HostSource& source);

}  // namespace fulmen

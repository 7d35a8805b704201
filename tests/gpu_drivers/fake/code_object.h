// The metadata of an AMD code object: its chip, and for each kernel the arguments and limits that a
// launch must keep to.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fulmen::fake {

struct CodeObjectKernel {
  std::string name;
  std::size_t argument_bytes = 0;  // the arguments in the source; the runtime appends hidden ones
  unsigned lds_bytes = 0;          // static
  unsigned max_workgroup = 0;
};

struct CodeObject {
  std::string error;  // why it is none
  std::string chip;   // "gfx1100"
  std::size_t bytes = 0;
  std::vector<CodeObjectKernel> kernels;
};

CodeObject read_code_object(const void* image);

}  // namespace fulmen::fake

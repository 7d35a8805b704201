// The table that cmake/EmbedFiles.cmake makes of src/kernels and src/algorithm.
#pragma once

namespace fulmen::gpu {

struct EmbeddedFile {
  const char* name;  // "forward/prefill.h", "targets/gfx11/target.h", "algorithm/key_range.h"
  const char* text;
};
extern const EmbeddedFile kEmbeddedFiles[];
extern const int kEmbeddedFileCount;

}  // namespace fulmen::gpu

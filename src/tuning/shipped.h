// The table that cmake/EmbedFiles.cmake makes of data/tuned: results that come with the library, a
// file a chip.
#pragma once

namespace fulmen::tuning {

struct ShippedFile {
  const char* name;  // "sm_90a.json"
  const char* text;
};
extern const ShippedFile kShippedFiles[];
extern const int kShippedFileCount;

}  // namespace fulmen::tuning

// The table that cmake/EmbedFiles.cmake makes of the headers that compiled score functions need, in
// an order in which each comes after what it includes.
#pragma once

namespace fulmen::cpu {

struct EmbeddedHeader {
  const char* name;
  const char* text;
};
extern const EmbeddedHeader kEmbeddedHeaders[];
extern const int kEmbeddedHeaderCount;

}  // namespace fulmen::cpu

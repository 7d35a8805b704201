// Reads JSON (RFC 8259): enough for files of tuned results, in a library that has no dependency for
// it. Any bytes are safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fulmen/status.h"

namespace fulmen::tuning {

struct Json {
  enum class Kind { null, boolean, number, string, array, object };
  Kind kind = Kind::null;
  bool boolean = false;
  double number = 0;
  std::string string;
  std::vector<Json> items;  // of an array; an object's members
  std::string name;         // of a member

  const Json* find(std::string_view wanted) const;  // of members with one name the first
};

// Errors: what is wrong, and the byte at which it is.
Result<Json> parse_json(std::string_view text);

}  // namespace fulmen::tuning

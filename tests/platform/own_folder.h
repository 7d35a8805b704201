// A folder of a test's own, which goes with all that is in it.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "runtime/run_program.h"

namespace fulmen::testing {

class OwnFolder {
 public:
  OwnFolder() { EXPECT_TRUE(folder_.status().ok()) << folder_.status().message(); }
  const std::string& path() const { return folder_.path(); }
  std::string operator/(const std::string& name) const { return path() + "/" + name; }

 private:
  TemporaryDirectory folder_;
};

}  // namespace fulmen::testing

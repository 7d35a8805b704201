// Error messages for names that do not exist.
#include "fulmen/names.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fulmen {
namespace {

TEST(Names, TheNearestComeFirst) {
  const std::vector<std::string> names{"cpu", "hip\nnot usable", "emulated:gfx1100",
                                       "emulated:gfx1101", "emulated:gfx942"};
  const std::string chip =
      R"(did you mean "emulated:gfx1100"? Known are "emulated:gfx1100", "emulated:gfx1101", )";
  EXPECT_EQ(names_like("emulated:gfx1102", names).substr(0, chip.size()), chip);
  const std::string remarked = R"(did you mean "hip"? Known are "hip" (not usable), "cpu", )";
  EXPECT_EQ(names_like("hi", names).substr(0, remarked.size()), remarked);
  EXPECT_EQ(names_like("vulkan:0", {"cpu", "cuda\nnot usable"}),
            R"(known are "cuda" (not usable), "cpu")");
  EXPECT_EQ(names_like("x", {}), "none is known");
}

TEST(Names, AreFewAndPrintable) {
  std::vector<std::string> names(40, "kernel");
  names.emplace_back("a\x1b");
  const std::string said = names_like("a\x1b\x1b", names);
  EXPECT_EQ(
      said,
      R"(did you mean "a\x1b"? Known are "a\x1b", "kernel", "kernel", "kernel", "kernel", "kernel" and 35 more)");
  EXPECT_LT(names_like(std::string(1 << 20, 'x'), names).size(), 200U);
}

}  // namespace
}  // namespace fulmen

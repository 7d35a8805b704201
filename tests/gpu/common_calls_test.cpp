// Packages of prebuilt kernels have what common calls launch: calls drawn here, not those of the
// list that the packages are made by.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "gpu/launch/specialisation.h"
#include "gpu/shipped.h"
#include "gpu/usual_problems.h"
#include "support/random.h"
#include "support/test_chips.h"

namespace fulmen::test {
namespace {

std::string key_of(const gpu::Specialisation& s) { return std::string(s.entry) + prelude(s); }

// As a model would call: any batch, any length, one of the usual heads.
Problem drawn(testing::Random& random) {
  const DType dtype = random.pick({DType::bf16, DType::fp16});
  const int64_t dim = random.pick<int64_t>({64, 80, 96, 128, 256});
  const auto [heads, kv_heads] =
      random.pick<std::pair<int64_t, int64_t>>({{12, 12}, {16, 16}, {40, 40}, {32, 8}, {64, 8}});
  const int64_t batch = random.between(1, 64), keys = 16 * random.between(16, 512);
  const bool causal = random.chance(.5);
  switch (random.between(0, 4)) {
    case 0:  // a step of decoding
      return gpu::usual_problem(dtype, {batch, 1, keys, heads, kv_heads, dim}, false);
    case 1:  // the same over pages
      return gpu::paged(gpu::usual_problem(dtype, {batch, 1, 4096, heads, kv_heads, dim}, false),
                        random.pick<int64_t>({16, 64, 256}));
    case 2:  // training on documents
      return gpu::backward_of(gpu::packed(
          gpu::usual_problem(dtype, {batch, keys, keys, heads, kv_heads, dim}, causal)));
    case 3:
      return gpu::backward_of(
          gpu::usual_problem(dtype, {batch, keys, keys, heads, kv_heads, dim}, causal));
    default:
      return gpu::usual_problem(dtype, {batch, keys, keys, heads, kv_heads, dim}, causal);
  }
}

class CommonCalls : public ::testing::TestWithParam<std::string> {};

TEST_P(CommonCalls, KernelsAreInThePackage) {
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip(GetParam(), storage, chip));
  std::set<std::string> packaged;
  for (const gpu::Specialisation& s : gpu::common_kernels(chip)) packaged.insert(key_of(s));
  testing::Random random(std::hash<std::string>{}(GetParam()));
  SCOPED_TRACE("repeat it: FULMEN_TEST_SEED=" + std::to_string(testing::test_seed()));
  constexpr int kCalls = 1000;
  int missing = 0;
  std::set<std::string> names;
  for (int n = 0; n < kCalls; ++n) {
    bool all = true;
    for (const gpu::Specialisation& s : gpu::kernels_of({drawn(random)}, chip)) {
      if (packaged.contains(key_of(s))) continue;
      all = false;
      names.insert(to_string(s));
    }
    missing += all ? 0 : 1;
  }
  std::string list;
  for (const std::string& name : names) list += "\n  " + name;
  // Numbers of splits and of persistent workgroups are many: what the package lacks is compiled.
  EXPECT_LE(missing, kCalls / 20) << list;
}

INSTANTIATE_TEST_SUITE_P(On, CommonCalls,
                         ::testing::Values("gfx1030", "gfx1100", "gfx1201", "gfx90a", "gfx942",
                                           "gfx950", "sm_80", "sm_90a"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fulmen::test

// Windows over split keys, in every layout of keys, by each family that splits them.
#include <string>
#include <vector>

#include "gpu/gpu_devices.h"
#include "support/split_windows.h"

namespace fulmen::testing {
namespace {

// Hopper's own family beside those of the targets that extend none.
std::vector<std::string> split_devices() {
  std::vector<std::string> names = gpu_devices(Chips::one_of_each_target);
  for (const std::string& chip : test_chips(has_warpgroups, Chips::one_of_each_target))
    names.push_back("emulated:" + chip);
  return names;
}

class GpuDecodeSplits : public GpuTest {
 protected:
  // The TMA reads whole rows, sequences at multiples of one length, and pages of 16 rows or more.
  static bool takes_tma_layouts() { return device().starts_with("emulated:sm_90a"); }
  static bool splits_here(const std::string& kernel) {
    return runs_here(kernel) &&
           (!takes_tma_layouts() || kernel.find(".decode_tma.") != std::string::npos);
  }
  void check(const std::vector<KeyLayout>& layouts, Random& random, int64_t head_dim = 64) const {
    CaseSpec s;
    s.dtype = DType::bf16;
    s.batch = 2;
    s.num_kv_heads = 1;
    s.head_dim = s.head_dim_v = head_dim;
    for (const KeyLayout layout : layouts) {
      s.num_heads = random.between(1, 4);
      s.seqlen_q = random.between(1, 3);
      s.seqlen_k = random.between(1060, 1200);
      s.sinks = random.chance(0.5);
      expect_split_windows_verified(device(), layout, s, {4, 2, 4, 4}, splits_here, random);
    }
  }
};

TEST_P(GpuDecodeSplits, WindowsOverContiguousKeys) {
  Random random(own_stream(9400));
  check({KeyLayout::contiguous, KeyLayout::head_major}, random);
  check({KeyLayout::contiguous}, random, 256);  // waves share the dims of v
  if (!takes_tma_layouts()) check({KeyLayout::odd_strides}, random);
}

TEST_P(GpuDecodeSplits, WindowsOverSequences) {
  Random random(own_stream(9410));
  check({KeyLayout::padded}, random);
  if (!takes_tma_layouts()) check({KeyLayout::packed, KeyLayout::leftpad}, random);
}

TEST_P(GpuDecodeSplits, WindowsOverPages) {
  Random random(own_stream(9420));
  check({KeyLayout::pages_of_16, KeyLayout::pages_of_64}, random);
  if (!takes_tma_layouts()) check({KeyLayout::pages_of_7}, random);
}

INSTANTIATE_TEST_SUITE_P(On, GpuDecodeSplits, ::testing::ValuesIn(split_devices()), test_name);

}  // namespace
}  // namespace fulmen::testing

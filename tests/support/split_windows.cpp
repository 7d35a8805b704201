#include "support/split_windows.h"

namespace fulmen::testing {
namespace {

CaseSpec laid_out(CaseSpec s, KeyLayout layout, Random& random) {
  switch (layout) {
    case KeyLayout::contiguous:
      break;
    case KeyLayout::head_major:
      s.layout = Layout::bhsd;
      break;
    case KeyLayout::odd_strides:
      s.layout = Layout::odd_strides;
      break;
    case KeyLayout::packed:
      s.packed_k = true;
      s.packed_q = random.chance(0.5);
      break;
    case KeyLayout::padded:
      s.used_k = true;
      break;
    case KeyLayout::leftpad:
      s.used_k = s.leftpad_k = true;
      break;
    case KeyLayout::pages_of_7:
    case KeyLayout::pages_of_16:
    case KeyLayout::pages_of_64:
      s.page_size = layout == KeyLayout::pages_of_7    ? 7
                    : layout == KeyLayout::pages_of_16 ? 16
                                                       : 64;
      s.used_k = true;
      break;
  }
  // Short sequences have few windows that meet several splits, and short packed ones have no room
  // for several.
  s.even_lengths = s.packed_k || (variable_lengths(s) && random.chance(0.5));
  return s;
}

}  // namespace

void expect_split_windows_verified(const std::string& device, KeyLayout layout, CaseSpec spec,
                                   const std::vector<int>& splits,
                                   const std::function<bool(const std::string& kernel)>& asked,
                                   Random& random) {
  spec.nan_in_masked = true;
  int runs = 0;
  for (const int count : splits) {
    CaseSpec s = laid_out(spec, layout, random);
    s.causal = random.pick({Causal::none, Causal::bottom_right});
    s.window_left = random.between(s.seqlen_k / 8, s.seqlen_k - 1);
    s.window_right = s.causal == Causal::none && random.chance(0.5) ? random.between(0, 30) : -1;
    Case c(s, random);
    if (count > 0) c.options.tuning = "num_splits=" + std::to_string(count);
    for (const std::string& kernel : kernels_for(c.problem(), device)) {
      if (kernel.find(".decode") == std::string::npos || !asked(kernel)) continue;
      EXPECT_TRUE(verified(c, kernel, {device})) << count << " splits";
      ++runs;
    }
  }
  EXPECT_GE(runs, static_cast<int>(splits.size())) << device;
}

}  // namespace fulmen::testing

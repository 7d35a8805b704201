// Sets dbias to 0, where a launch behind stores what it visits of it (parts/stored_bias.h). A
// workgroup has a row, of a head of a batch element.
#include "backward/parts/bias.h"

namespace fulmen::kernels {

FULMEN_DEVICE void clear_bias(const BackwardArguments& a) {
  const auto id = static_cast<unsigned>(workgroup_id()), rows = static_cast<unsigned>(a.seqlen_q),
             heads = static_cast<unsigned>(a.num_heads), plane = id / rows;
  auto* const row =
      const_cast<BiasGradient*>(at<BiasGradient>(a.dbias, plane / heads, id % rows, plane % heads));
  constexpr int kPiece = kWholeBias ? 16 / static_cast<int>(sizeof(BiasGradient)) : 1;
  for (Int64 j = kPiece * thread_id(); j < a.seqlen_k; j += kPiece * kWorkgroup) {
    if constexpr (kWholeBias) {
      global_store(reinterpret_cast<Words<4>*>(row + j), Words<4>{});
    } else {
      global_store(row + j, from_float<BiasGradient>(0.0F));
    }
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::clear_bias)

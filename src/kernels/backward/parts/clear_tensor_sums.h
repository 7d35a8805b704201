// Sets the sums of tensors' gradients, and their flags, to 0.
#include "core/config.h"

namespace fulmen::kernels {

FULMEN_DEVICE void clear_tensor_sums(const BackwardArguments& a) {
  const TensorGradients& g = a.tensor_gradients;
  // Words, and two flags of half a word.
  const Int64 n = workgroup_id() * kWorkgroup + thread_id(),
              words = Int64{algorithm::kTensorSumWords + 1} * g.elements;
  if (n < words) global_store(g.sums + n, Int64{0});
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::BackwardArguments, fulmen::kernels::clear_tensor_sums)

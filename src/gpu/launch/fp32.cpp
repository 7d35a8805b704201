#include "gpu/launch/fp32.h"

#include <algorithm>
#include <string>

namespace fulmen::gpu {

Support takes_fp32(const Problem& p, const Target& target, int most_dims) {
  if (p.dtype != DType::fp32 || p.k_dtype != DType::fp32)
    return Support::no("it multiplies parts of fp32");
  if (std::max(p.head_dim, p.head_dim_v) <= most_dims) return {};
  return Support::no("parts of fp32 leave no room for more than " + std::to_string(most_dims) +
                     " dims on " + std::string(target.name));
}

void specialise_fp32_for(const Problem& p, Specialisation& s) {
  specialise_for(p, s);
  s.whole_rows = strides_are_whole(p);
  s.whole_bias = s.whole_rows && bias_is_whole(p) && !s.variable;
}

}  // namespace fulmen::gpu

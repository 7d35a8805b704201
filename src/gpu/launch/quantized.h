// Quantized k and v: what kernels are compiled with and given for them.
#pragma once

#include <string>

#include "fulmen/backend.h"
#include "gpu/launch/specialisation.h"
#include "gpu/targets/target.h"

namespace fulmen::gpu {

// Returns true if it is a scale of each token.
bool has_token_scales(const TensorSpec& scale);
// Yes if k and v can be operands of matrix instructions as they are stored: numbers of q's dtype,
// int8 or fp8, which 16 bits have exactly, with scales that scores and probabilities take.
Support multiplies_stored(const Problem& problem, const Target& target);
// How many of k and v, in tiles that products take, have a scale for each row.
int row_scales_of_tiles(const Specialisation& s);
// The formats of k and v, and which scales rows have.
void specialise_kv(const Problem& problem, Specialisation& s);
// " k=int8 v=q4_0 token scales": for listings.
std::string kv_text(const Specialisation& s);
// Strides of k and v in bytes, where they are quantized, and of their scales; then the scales'
// addresses.
void set_kv_strides(const Problem& problem, kernels::ForwardArguments& arguments);
void set_scale_pointers(const Problem& problem, const AttentionTensors& tensors,
                        kernels::ForwardArguments& arguments);
// Parts of these, for append_kv: Configuration::key_scales of a tensor of scales; a view's strides
// in bytes; ForwardArguments::half_scales.
int row_scales(const TensorSpec& scale);
void set_bytes(DType dtype, kernels::View& view);
int half_scales(const TensorSpec& k, const TensorSpec& v, const TensorSpec& q);

}  // namespace fulmen::gpu

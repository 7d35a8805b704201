// The product in a matrix instruction: D[size, size] += A[size, depth] B[depth, size].
#pragma once

namespace fulmen::gpu::isa {

// `a` is A by columns, `b` is B by rows, so both are [depth][kSize]; `d` is [kSize][kSize]. Each
// element is summed in the order of k, by a product and a sum that are rounded each: the same bits
// on every processor, but for which NaN a NaN is. kSize: 16, 32.
template <int kSize>
void add_product(const float (*a)[kSize], const float (*b)[kSize], float (*d)[kSize], int depth);

}  // namespace fulmen::gpu::isa

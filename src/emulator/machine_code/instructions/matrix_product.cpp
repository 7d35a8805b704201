// Compiled for SSE2, AVX2 and AVX-512, and chosen at run time: on CDNA these loops were most of the
// emulator's time. The file is compiled without contraction (src/CMakeLists.txt).
#include "emulator/machine_code/instructions/matrix_product.h"

#include <cstring>

#include "runtime/fork_safe.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // no vector crosses a call that is not inlined
#endif

namespace fulmen::gpu::isa {
namespace {

constexpr int kLanes = 16;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));

// kRows rows of D at once hide the latency of one sum behind the others.
template <int kSize, int kRows>
[[gnu::always_inline]] inline void add_product_body(const float (*a)[kSize],
                                                    const float (*b)[kSize], float (*d)[kSize],
                                                    int depth) {
  for (int row = 0; row < kSize; row += kRows) {
    for (int column = 0; column < kSize; column += kLanes) {
      Floats sums[kRows];
      for (int r = 0; r < kRows; ++r) std::memcpy(&sums[r], &d[row + r][column], sizeof(Floats));
      for (int k = 0; k < depth; ++k) {
        Floats x;
        std::memcpy(&x, &b[k][column], sizeof x);
        for (int r = 0; r < kRows; ++r) sums[r] = sums[r] + x * a[k][row + r];
      }
      for (int r = 0; r < kRows; ++r) std::memcpy(&d[row + r][column], &sums[r], sizeof(Floats));
    }
  }
}

template <int kSize>
void add_product_baseline(const float (*a)[kSize], const float (*b)[kSize], float (*d)[kSize],
                          int depth) {
  add_product_body<kSize, 2>(a, b, d, depth);
}

#if defined(__x86_64__)
template <int kSize>
[[gnu::target("avx2")]] void add_product_avx2(const float (*a)[kSize], const float (*b)[kSize],
                                              float (*d)[kSize], int depth) {
  add_product_body<kSize, 4>(a, b, d, depth);
}
template <int kSize>
[[gnu::target("avx512f")]] void add_product_avx512(const float (*a)[kSize], const float (*b)[kSize],
                                                   float (*d)[kSize], int depth) {
  add_product_body<kSize, 8>(a, b, d, depth);
}
#endif

template <int kSize>
auto choose_clone() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return add_product_avx512<kSize>;
  if (__builtin_cpu_supports("avx2")) return add_product_avx2<kSize>;
#endif
  return add_product_baseline<kSize>;
}

}  // namespace

template <int kSize>
void add_product(const float (*a)[kSize], const float (*b)[kSize], float (*d)[kSize], int depth) {
  constinit static MadeOnce<decltype(&add_product<kSize>)> clone;
  clone.get([] { return choose_clone<kSize>(); })(a, b, d, depth);
}
template void add_product<16>(const float (*a)[16], const float (*b)[16], float (*d)[16],
                              int depth);
template void add_product<32>(const float (*a)[32], const float (*b)[32], float (*d)[32],
                              int depth);

}  // namespace fulmen::gpu::isa

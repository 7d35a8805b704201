// What every kernel starts from: the platform's primitives and the types that memory holds.
// Freestanding: no standard headers, no vendor headers.
//
// A platform header (platforms/{amd,nvidia,emulated}.h) defines
//   FULMEN_DEVICE                            how a device function is declared
//   FULMEN_KERNEL(Arguments, body)           the entry point FULMEN_ENTRY(Arguments by value),
//                                            calling body(const Arguments&)
//   lane_id() thread_id() workgroup_id()
//   wave_id()                                all lanes of a wave ask for it together: on NVIDIA it
//                                            is a broadcast
//   broadcast(x)                             x of a wave's first lane, so that the compiler knows
//                                            it is the same in all
//   reload(arguments, when)                  a kernel's arguments again: they need not stay in
//                                            registers until then. `when` is the same in all lanes
//                                            and differs from one turn of a loop to the next
//   recompute(x, when)                       x; what follows from it need not stay in registers
//                                            either. Without `when`: computed anew wherever the
//                                            code is run
//   barrier()                                of the workgroup; LDS written before is read after
//   grid_dependency_wait(addresses)           what a kernel that may be launched early does before
//                                            it reads memory (gpu/driver.h). `addresses`: those
//                                            computed so far, not 0; else ptxas hoists the wait
//                                            above them
//   fetch_to_l2(p)                           NVIDIA: a hint, allowed before grid_dependency_wait()
//   wave_barrier()                           the same of a wave
//   named_barrier_arrive(place) named_barrier_sync(place)   NVIDIA: the second waits for the first,
//                                            of another wave, and what that one wrote to LDS before
//                                            is read after. Places 1 to 15, each once between two
//                                            barriers
//   lds_load<V>(offset) lds_store(offset, v) LDS is addressed by bytes from its start
//   global_load<V>(p) global_store(p, v) global_stream(p, v)   a stream store is not kept in caches
//   kAddWidth global_add<kOffset>(p, words)  NVIDIA: adds that many floats to p[kOffset] and on,
//                                            each atomically
//   global_add_int64(p, x)                   adds to memory, atomically
//   any_lane(x) ballot(x)                    true if x is, in any lane of the wave; bit l: in lane
//                                            l. The same in all
//   struct Pair {x, y}; multiply_add(pair, b, c) add(pair, pair)
//   schedule_fence()                         a hint: keep the order of loads across it
//   larger(a, b) absolute(x) copy_sign(x, sign)   larger() ignores a NaN
//   evaluated(x) evaluated_uniform(x)        x (the same in all lanes), so that to choose it does
//                                            not become a branch
//   uniform(x)                               x, which is the same in all lanes, in a scalar
//                                            register where there are some
//   keep_together(x)                         AMD: the floats of an array stay in neighbouring
//                                            registers; they are not computed again
//   global_load_unaligned<V>(p) global_store_unaligned(p, v)   AMD: at any address (of 16 bits)
//   class Buffer(base, bytes)                AMD: load<V>(offset, fixed), 0 past the end
//   shuffle_xor(x, mask)                     the value of lane_id() ^ mask
//   exp2(x) log2(x) tanh(x) reciprocal(x)    fast hardware versions, within 2 ulp (tanh: 1e-6
//                                            absolute) over the softmax's range
//   fused(x, y, z) rounded_product(x, y)     x y + z, rounded once; x y, never fused with a sum
//   square_root(x) round_down(x) round_to_even(x)   as IEEE has them
//   half_to_float(bits) pack_halves(a, b) pack_bf16(a, b)  two floats rounded to nearest into 32
//                                            bits, a in the low half
//   pack_half_probabilities(a, b)            the same for numbers >= 0 that are 2^kHalfShift too
//                                            large (kHalfUnshift undoes it)
//   pack_bf16_probabilities(a, b)            the same for numbers >= 0, ties to either side
//   pack_e4m3(a, b, c, d)                    NVIDIA from sm_89: four numbers rounded to E4M3, to
//                                            nearest and up to its largest, a in the low byte
//   dot2(a, b, sum)                          the products of two pairs of fp16 numbers, added to
//                                            `sum` in fp32. AMD: of chips that have it
//   halves(a, b, high)                       the low (high) 16 bits of a, and above them those of b
//   byte_pair<kHigh>(a, i, b, j)             byte i of a and byte j of b in the low (kHigh: high)
//                                            bytes of 16 bits each, the others 0
//   alternate_bytes(a, b, odd)               NVIDIA: bytes 0, 2 (odd: 1, 3) of a, then of b
//   byte_signs(a, b)                         NVIDIA: of the odd ones the highest bits, each as
//                                            eight
//   add_halves(a, b) multiply_halves(a, b)   of two fp16 numbers each, rounded to nearest
//   int8_pair_bf16(a, i, b, j)               the numbers of byte i of a and byte j of b in bf16
//   e4m3_pair_half(a, i, b, j)               the same of E4M3 in fp16, with kConvertsE4m3
//   fp8_to_float<kE5m2>(x, i)                with kConvertsFp8: the number of byte i of x, of E5M2
//                                            or E4M3, with kFnuzCodes of their FNUZ kinds
//   fp8_to_floats<kE5m2>(x, high, y)         those of its low (high) two bytes
#pragma once

#include "core/platform.h"
#include "core/types.h"

namespace fulmen::kernels {

template <bool kFirst, class First, class Second>
struct EitherOf {
  using Type = First;
};
template <class First, class Second>
struct EitherOf<false, First, Second> {
  using Type = Second;
};
template <bool kFirst, class First, class Second>
using Either = typename EitherOf<kFirst, First, Second>::Type;

template <class T>
constexpr bool kIsHalf = false;
template <>
constexpr bool kIsHalf<Half> = true;

FULMEN_DEVICE unsigned float_bits(float x) { return __builtin_bit_cast(unsigned, x); }
FULMEN_DEVICE float bits_float(unsigned x) { return __builtin_bit_cast(float, x); }

// The smaller of x and an int.
FULMEN_DEVICE int at_most(Int64 x, int most) { return x < most ? static_cast<int>(x) : most; }

FULMEN_DEVICE float to_float(float x) { return x; }
FULMEN_DEVICE float to_float(Half x) { return half_to_float(x.bits); }
FULMEN_DEVICE float to_float(Bfloat16 x) {
  return bits_float(static_cast<unsigned>(x.bits) << 16U);
}

// The number whose bits are the low ones of x.
template <class T>
FULMEN_DEVICE float of_bits(unsigned x) {
  if constexpr (sizeof(T) == 4) {
    return bits_float(x);
  } else {
    return to_float(T{static_cast<unsigned short>(x)});
  }
}

// Two values rounded to T in one word, a in the low half.
template <class T>
FULMEN_DEVICE unsigned pack(float a, float b);
template <>
FULMEN_DEVICE unsigned pack<Half>(float a, float b) {
  return pack_halves(a, b);
}
template <>
FULMEN_DEVICE unsigned pack<Bfloat16>(float a, float b) {
  return pack_bf16(a, b);
}

// What to_operand() is asked for where numbers are cut off to bf16, not rounded.
struct LeadingBits {};

// kShifted: they are 2^kHalfShift too large.
template <class T, bool kShifted>
FULMEN_DEVICE unsigned pack_probabilities(float a, float b) {
  if constexpr (sizeof(T) == 1) return halves(float_bits(a), float_bits(b), true);
  if constexpr (!kIsHalf<T>) return pack_bf16_probabilities(a, b);
  return kShifted ? pack_half_probabilities(a, b) : pack_halves(a, b);
}

template <class T>
FULMEN_DEVICE T from_float(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else {
    return T{static_cast<unsigned short>(pack<T>(x, 0.0F))};
  }
}

}  // namespace fulmen::kernels

// NVIDIA: NVRTC's language and PTX. sm_70 and newer.
#pragma once

#include "core/types.h"

#define FULMEN_DEVICE __device__ __forceinline__
#define FULMEN_INLINED
#define FULMEN_KERNEL(Arguments, body)                                          \
  extern "C" __global__ void __launch_bounds__(fulmen::kernels::kWorkgroup,     \
                                               fulmen::kernels::kMinWorkgroups) \
      FULMEN_ENTRY(const __grid_constant__ Arguments arguments) {               \
    body(arguments);                                                            \
  }
// `cluster` neighbouring workgroups are on multiprocessors that reach each other's LDS.
#define FULMEN_CLUSTER_KERNEL(Arguments, body, cluster)                               \
  extern "C" __global__ void __cluster_dims__(cluster, 1, 1)                          \
      __launch_bounds__(fulmen::kernels::kWorkgroup, fulmen::kernels::kMinWorkgroups) \
          FULMEN_ENTRY(const __grid_constant__ Arguments arguments) {                 \
    body(arguments);                                                                  \
  }

namespace fulmen::kernels {

// Launch::programmatic_launch: here workgroups wait for the work ahead of them in the stream, and
// what it wrote. Then those of the next kernel may come.
FULMEN_DEVICE void grid_dependency_wait(unsigned long long addresses = 1) {
#if __CUDA_ARCH__ >= 900
  // By its operand the instruction stays behind what computes that: ptxas moves it to the kernel's
  // first instructions else.
  asm volatile("{\n.reg .pred some;\nsetp.ne.u64 some, %0, 0;\n@some griddepcontrol.wait;\n}" ::"l"(
                   addresses)
               : "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The line of the L2 that p is in, before the wait: what the work ahead writes later reaches the
// L2, too. Where nothing is launched early, it would only be asked for twice.
FULMEN_DEVICE void fetch_to_l2(const void* p) {
#if __CUDA_ARCH__ >= 900
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p) : "memory");
#endif
}

constexpr int kWaveSize = 32;

extern __shared__ __align__(1024) unsigned char lds_memory[];

FULMEN_DEVICE int thread_id() { return static_cast<int>(threadIdx.x); }
FULMEN_DEVICE int lane_id() { return static_cast<int>(threadIdx.x) % kWaveSize; }
// Broadcast, so that the compiler knows it is the same in every lane.
FULMEN_DEVICE int wave_id() {
  return __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / kWaveSize, 0);
}
// Broadcast, too.
FULMEN_DEVICE int broadcast(int x) { return __shfl_sync(0xffffffffU, x, 0); }
FULMEN_DEVICE Int64 workgroup_id() { return blockIdx.x; }
FULMEN_DEVICE void barrier() { __syncthreads(); }
FULMEN_DEVICE void wave_barrier() { __syncwarp(); }
FULMEN_DEVICE void named_barrier_arrive(int place) {
  asm volatile("bar.arrive %0, 64;" ::"r"(place) : "memory");
}
FULMEN_DEVICE void named_barrier_sync(int place) {
  asm volatile("bar.sync %0, 64;" ::"r"(place) : "memory");
}

// Arguments are operands of instructions here.
template <class Arguments>
FULMEN_DEVICE const Arguments& reload(const Arguments& arguments, Int64 /*when*/) {
  return arguments;
}

FULMEN_DEVICE int recompute(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
FULMEN_DEVICE int recompute(int x, Int64 /*when*/) { return recompute(x); }

template <class V>
FULMEN_DEVICE V lds_load(int offset) {
  return *reinterpret_cast<const V*>(lds_memory + offset);
}
template <class V>
FULMEN_DEVICE void lds_store(int offset, V value) {
  *reinterpret_cast<V*>(lds_memory + offset) = value;
}
template <class V>
FULMEN_DEVICE V global_load(const V* p) {
  return *p;
}
// By pieces of 2 bytes: no target here has kAnyAlignment, so nothing calls these two.
template <class V>
FULMEN_DEVICE V global_load_unaligned(const void* p) {
  struct Pieces {
    unsigned short piece[sizeof(V) / 2];
  } pieces;
  for (unsigned n = 0; n < sizeof(V) / 2; ++n)
    pieces.piece[n] = static_cast<const unsigned short*>(p)[n];
  return __builtin_bit_cast(V, pieces);
}
template <class V>
FULMEN_DEVICE void global_store_unaligned(void* p, V value) {
  struct Pieces {
    unsigned short piece[sizeof(V) / 2];
  };
  const auto pieces = __builtin_bit_cast(Pieces, value);
  for (unsigned n = 0; n < sizeof(V) / 2; ++n) static_cast<unsigned short*>(p)[n] = pieces.piece[n];
}
template <class V>
FULMEN_DEVICE void global_store(V* p, V value) {
  // By built-in vectors: the words of a class may be stored one by one.
  if constexpr (sizeof(V) == 8) {
    *reinterpret_cast<uint2*>(p) = __builtin_bit_cast(uint2, value);
  } else if constexpr (sizeof(V) == 16) {
    *reinterpret_cast<uint4*>(p) = __builtin_bit_cast(uint4, value);
  } else {
    *p = value;
  }
}

// A counter that all workgroups share: returns what it was, and adds 1.
FULMEN_DEVICE unsigned global_draw(unsigned* counter) { return atomicAdd(counter, 1U); }
// Adds to memory, atomically, in whatever order.
FULMEN_DEVICE void global_add_int64(Int64* to, Int64 x) {
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(x));
}
// As many floats as one instruction adds, to memory that is aligned for it; kOffset: in floats from
// there.
#if __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1201
constexpr int kAddWidth = 4;
template <int kOffset>
FULMEN_DEVICE void global_add(float* to, const Words<4>& values) {
  asm volatile("red.global.add.v4.f32 [%0 + %5], {%1, %2, %3, %4};" ::"l"(to),
               "f"(__uint_as_float(values.word[0])), "f"(__uint_as_float(values.word[1])),
               "f"(__uint_as_float(values.word[2])), "f"(__uint_as_float(values.word[3])),
               "n"(4 * kOffset)
               : "memory");
}
#else
constexpr int kAddWidth = 1;
template <int kOffset>
FULMEN_DEVICE void global_add(float* to, const Words<1>& values) {
  atomicAdd(to + kOffset, __uint_as_float(values.word[0]));
}
#endif

FULMEN_DEVICE float larger(float a, float b) { return fmaxf(a, b); }
FULMEN_DEVICE float absolute(float x) { return fabsf(x); }
FULMEN_DEVICE float copy_sign(float x, float sign) { return copysignf(x, sign); }
FULMEN_DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffU, x, mask); }
FULMEN_DEVICE unsigned shuffle_xor(unsigned x, int mask) {
  return __shfl_xor_sync(0xffffffffU, x, mask);
}

FULMEN_DEVICE unsigned long long ballot(bool x) { return __ballot_sync(0xffffffffU, x); }
// The number of the lowest bit that is set; x is not 0.
FULMEN_DEVICE int lowest_bit(unsigned x) { return __ffs(static_cast<int>(x)) - 1; }
FULMEN_DEVICE bool any_lane(bool x) { return __any_sync(0xffffffffU, x) != 0; }
template <class V>
FULMEN_DEVICE V evaluated(V x) {
  return x;
}
FULMEN_DEVICE unsigned evaluated_uniform(unsigned x) { return x; }
template <int kCount>
FULMEN_DEVICE void keep_together(float (& /*x*/)[kCount]) {}
FULMEN_DEVICE unsigned uniform(unsigned x) { return x; }
// Two numbers at once, for chips with packed fp32 arithmetic.
struct Pair {
  float x, y;
};
FULMEN_DEVICE Pair multiply_add(Pair a, float b, float c) { return {a.x * b + c, a.y * b + c}; }
FULMEN_DEVICE Pair add(Pair a, Pair b) { return {a.x + b.x, a.y + b.y}; }
FULMEN_DEVICE void schedule_fence() {}
FULMEN_DEVICE float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FULMEN_DEVICE float log2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FULMEN_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FULMEN_DEVICE float fused(float x, float y, float z) { return fmaf(x, y, z); }
FULMEN_DEVICE float rounded_product(float x, float y) { return __fmul_rn(x, y); }
FULMEN_DEVICE float square_root(float x) { return sqrtf(x); }
FULMEN_DEVICE float round_down(float x) { return floorf(x); }
FULMEN_DEVICE float round_to_even(float x) { return rintf(x); }
FULMEN_DEVICE float half_to_float(unsigned short bits) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
  return y;
}
FULMEN_DEVICE unsigned pack_halves(float a, float b) {
  unsigned y;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(b), "f"(a));
#else
  unsigned short low, high;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(low) : "f"(a));
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(high) : "f"(b));
  y = low | static_cast<unsigned>(high) << 16U;
#endif
  return y;
}
FULMEN_DEVICE unsigned round_bf16(float x) {
  const unsigned bits = __float_as_uint(x);
  return x != x ? 0x7FFFU : (bits + 0x7FFFU + (bits >> 16U & 1U)) >> 16U;
}
FULMEN_DEVICE unsigned pack_bf16(float a, float b) {
#if __CUDA_ARCH__ >= 800
  unsigned y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(b), "f"(a));
  return y;
#else
  return round_bf16(a) | round_bf16(b) << 16U;
#endif
}

// a.low b.low + a.high b.high + sum, of fp16 numbers.
FULMEN_DEVICE float dot2(unsigned a, unsigned b, float sum) {
  const auto number = [](unsigned bits) {
    return half_to_float(static_cast<unsigned short>(bits));
  };
  return sum + number(a) * number(b) + number(a >> 16U) * number(b >> 16U);
}

// The low, or the high, 16 bits of a, and above them those of b.
FULMEN_DEVICE unsigned halves(unsigned a, unsigned b, bool high) {
  return __byte_perm(a, b, high ? 0x7632 : 0x5410);
}

// As platforms/amd.h.
template <bool kHigh>
FULMEN_DEVICE unsigned byte_pair(unsigned a, int i, unsigned b, int j) {
  const unsigned low = static_cast<unsigned>(i), high = static_cast<unsigned>(j) + 4U;
  return kHigh ? __byte_perm(a, b, low << 4U | high << 12U) & 0xFF00FF00U
               : __byte_perm(a, b, low | high << 8U) & 0x00FF00FFU;
}
FULMEN_DEVICE unsigned alternate_bytes(unsigned a, unsigned b, bool odd) {
  return __byte_perm(a, b, odd ? 0x7531 : 0x6420);
}
FULMEN_DEVICE unsigned byte_signs(unsigned a, unsigned b) {
  unsigned y;
  asm("prmt.b32 %0, %1, %2, 0xFDB9;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
FULMEN_DEVICE unsigned add_halves(unsigned a, unsigned b) {
  unsigned y;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
FULMEN_DEVICE unsigned multiply_halves(unsigned a, unsigned b) {
  unsigned y;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
// The low 7 bits are those of bf16's fraction: 128 + x, less 128, or less 256 where x has its sign.
FULMEN_DEVICE unsigned int8_pair_bf16(unsigned a, int i, unsigned b, int j) {
  const unsigned codes =
      __byte_perm(a, b, static_cast<unsigned>(i) | (static_cast<unsigned>(j) + 4U) << 8U);
  // One instruction each; as an expression two, for an instruction has one constant.
  unsigned numbers, zeros, y;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;"
      : "=r"(numbers)
      : "r"(codes), "r"(0x007F007FU), "r"(0x43004300U));
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;"
      : "=r"(zeros)
      : "r"(codes), "r"(0x00800080U), "r"(0x43004300U));
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(zeros), "r"(0xBF80BF80U), "r"(numbers));
  return y;
}

// Byte i of a and byte j of b, E4M3 numbers, in fp16.
constexpr bool kConvertsE4m3 = __CUDA_ARCH__ >= 890;
FULMEN_DEVICE unsigned e4m3_pair_half(unsigned a, int i, unsigned b, int j) {
  unsigned y = 0;
#if __CUDA_ARCH__ >= 890
  const unsigned codes =
      __byte_perm(a, b, static_cast<unsigned>(i) | (static_cast<unsigned>(j) + 4U) << 4U);
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(static_cast<unsigned short>(codes)));
#endif
  return y;
}

// NVIDIA's instruction makes fp16 of two codes.
constexpr bool kConvertsFp8 = false;
template <bool kE5m2>
FULMEN_DEVICE float fp8_to_float(unsigned x, int i);
template <bool kE5m2>
FULMEN_DEVICE void fp8_to_floats(unsigned x, bool high, float (&y)[2]);

constexpr bool kFnuzCodes = false;
// Four numbers rounded to E4M3, to nearest and up to 448, in the order of bytes.
FULMEN_DEVICE unsigned pack_e4m3(float a, float b, float c, float d) {
  unsigned y = 0;
#if __CUDA_ARCH__ >= 890
  asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\nmov.b32 %0, {low, high};\n}"
      : "=r"(y)
      : "f"(a), "f"(b), "f"(c), "f"(d));
#endif
  return y;
}

// Two probabilities; the chip rounds as fast as anything else would.
constexpr float kHalfShift = 0, kHalfUnshift = 1;
FULMEN_DEVICE unsigned pack_half_probabilities(float a, float b) { return pack_halves(a, b); }
FULMEN_DEVICE unsigned pack_bf16_probabilities(float a, float b) { return pack_bf16(a, b); }

}  // namespace fulmen::kernels

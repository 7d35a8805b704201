// AMD: clang's HIP dialect by builtins alone. RDNA kernels run in wave32, GCN and CDNA ones in
// wave64: FULMEN_WAVE_SIZE says which.
#pragma once

#include "core/types.h"

#define FULMEN_DEVICE __attribute__((device, always_inline)) inline
// Before a call of a lambda in a branch that is seldom taken: clang 22 leaves decode's there a
// function of its own.
#define FULMEN_INLINED [[clang::always_inline]]
#define FULMEN_KERNEL(Arguments, body)                                                       \
  extern "C" __attribute__((                                                                 \
      global,                                                                                \
      amdgpu_flat_work_group_size(fulmen::kernels::kWorkgroup, fulmen::kernels::kWorkgroup), \
      amdgpu_waves_per_eu(fulmen::kernels::kMinWaves))) void                                 \
  FULMEN_ENTRY(const Arguments arguments) {                                                  \
    body(arguments);                                                                         \
  }

namespace fulmen::kernels {

constexpr int kWaveSize = FULMEN_WAVE_SIZE;

__attribute__((shared, aligned(128))) unsigned char lds_memory[kLdsBytes > 0 ? kLdsBytes : 4];

FULMEN_DEVICE int thread_id() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
FULMEN_DEVICE int lane_id() {
  if constexpr (kWorkgroup == kWaveSize) {
    return thread_id();
  } else {
    return thread_id() % kWaveSize;
  }
}
// In a scalar register: what depends on it costs no vector instructions.
FULMEN_DEVICE int wave_id() { return __builtin_amdgcn_readfirstlane(thread_id() / kWaveSize); }
FULMEN_DEVICE int broadcast(int x) { return __builtin_amdgcn_readfirstlane(x); }
FULMEN_DEVICE Int64 workgroup_id() { return __builtin_amdgcn_workgroup_id_x(); }
// Launches come one after the other.
FULMEN_DEVICE void grid_dependency_wait(unsigned long long /*addresses*/ = 1) {}
FULMEN_DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
#if defined(__GFX9__)
  // Waits for lgkmcnt(0). clang 22 drops the release fence's own wait where a loop begins with the
  // barrier and ends with stores to LDS: a wave would pass the barrier before they are done.
  __builtin_amdgcn_s_waitcnt(0xc07f);
#endif
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
FULMEN_DEVICE void wave_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

// The kernel's arguments, loaded when they are used and not kept in scalar registers until then.
template <class Arguments>
FULMEN_DEVICE const Arguments& reload(const Arguments& /*arguments*/, Int64 when) {
  const auto* segment =
      (const __attribute__((address_space(4))) void*)__builtin_amdgcn_kernarg_segment_ptr();
  asm("" : "+s"(segment) : "s"(static_cast<int>(when)));  // as if it were another address
  return *(const Arguments*)segment;
}

// x as if it were computed anew, for what is cheap to compute from a lane's number.
FULMEN_DEVICE int recompute(int x, Int64 when) {
  asm("" : "+v"(x) : "s"(static_cast<int>(when)));
  return x;
}
FULMEN_DEVICE int recompute(int x) {
  asm volatile("" : "+v"(x));
  return x;
}

template <class V>
FULMEN_DEVICE V lds_load(int offset) {
  return *reinterpret_cast<const V*>(lds_memory + offset);
}
template <class V>
FULMEN_DEVICE void lds_store(int offset, V value) {
  *reinterpret_cast<V*>(lds_memory + offset) = value;
}
// Built-in types of a size: classes have no copies across address spaces.
template <int kBytes>
struct Plain {
  typedef unsigned Type __attribute__((ext_vector_type(kBytes / 4)));
};
template <>
struct Plain<1> {
  using Type = unsigned char;
};
template <>
struct Plain<2> {
  using Type = unsigned short;
};
template <class V>
using GlobalPointer = __attribute__((address_space(1))) Plain<sizeof(V)>::Type*;
template <class V>
FULMEN_DEVICE V global_load(const V* p) {
  return __builtin_bit_cast(V, *(GlobalPointer<V>)p);
}
template <class V>
FULMEN_DEVICE void global_store(V* p, V value) {
  *(GlobalPointer<V>)p = __builtin_bit_cast(typename Plain<sizeof(V)>::Type, value);
}

// A counter that all workgroups share: returns what it was, and adds 1.
FULMEN_DEVICE unsigned global_draw(unsigned* counter) {
  return __hip_atomic_fetch_add((__attribute__((address_space(1))) unsigned*)counter, 1U,
                                __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

// Adds to memory, atomically, in whatever order.
FULMEN_DEVICE void global_add_int64(Int64* to, Int64 x) {
  __hip_atomic_fetch_add((__attribute__((address_space(1))) Int64*)to, x, __ATOMIC_RELAXED,
                         __HIP_MEMORY_SCOPE_AGENT);
}

// At any address: the chips' memory instructions need no alignment where the operating system lets
// them, as ROCm does.
template <class V>
FULMEN_DEVICE V global_load_unaligned(const void* p) {
  typedef typename Plain<sizeof(V)>::Type Unaligned __attribute__((aligned(1)));
  return __builtin_bit_cast(V, static_cast<typename Plain<sizeof(V)>::Type>(
                                   *(__attribute__((address_space(1))) Unaligned*)p));
}
template <class V>
FULMEN_DEVICE void global_store_unaligned(void* p, V value) {
  typedef typename Plain<sizeof(V)>::Type Unaligned __attribute__((aligned(1)));
  *(__attribute__((address_space(1))) Unaligned*)p =
      __builtin_bit_cast(typename Plain<sizeof(V)>::Type, value);
}

// Memory behind a buffer descriptor: V at offset + fixed, where `fixed` is the same in all lanes; 0
// past the end. The hardware adds without wrapping around: a `fixed` of 2^31 or more is past any
// end.
#if __has_builtin(__builtin_amdgcn_make_buffer_rsrc) && \
    __has_builtin(__builtin_amdgcn_raw_buffer_load_b128) && !defined(FULMEN_BUFFER_INTRINSICS)
typedef __amdgpu_buffer_rsrc_t BufferDescriptor;
FULMEN_DEVICE BufferDescriptor buffer_descriptor(const void* base, int bytes, int flags) {
  return __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(base), 0, bytes, flags);
}
FULMEN_DEVICE auto buffer_load(Plain<2> /*kind*/, BufferDescriptor from, int offset, int fixed) {
  return __builtin_amdgcn_raw_buffer_load_b16(from, offset, fixed, 0);
}
FULMEN_DEVICE auto buffer_load(Plain<4> /*kind*/, BufferDescriptor from, int offset, int fixed) {
  return __builtin_amdgcn_raw_buffer_load_b32(from, offset, fixed, 0);
}
FULMEN_DEVICE auto buffer_load(Plain<8> /*kind*/, BufferDescriptor from, int offset, int fixed) {
  return __builtin_amdgcn_raw_buffer_load_b64(from, offset, fixed, 0);
}
FULMEN_DEVICE auto buffer_load(Plain<16> /*kind*/, BufferDescriptor from, int offset, int fixed) {
  return __builtin_amdgcn_raw_buffer_load_b128(from, offset, fixed, 0);
}
#else
// clang before 19, which ROCm before 6.4 has, knows the instructions by the names of LLVM's
// intrinsics alone.
typedef unsigned BufferDescriptor __attribute__((ext_vector_type(4)));
typedef Plain<8>::Type BufferWords2;
__attribute__((device)) unsigned short raw_buffer_load_half(BufferDescriptor, int, int, int) __asm(
    "llvm.amdgcn.raw.buffer.load.i16");
__attribute__((device)) unsigned raw_buffer_load_1(BufferDescriptor, int, int,
                                                   int) __asm("llvm.amdgcn.raw.buffer.load.i32");
__attribute__((device)) BufferWords2
raw_buffer_load_2(BufferDescriptor, int, int, int) __asm("llvm.amdgcn.raw.buffer.load.v2i32");
__attribute__((device)) BufferDescriptor
raw_buffer_load_4(BufferDescriptor, int, int, int) __asm("llvm.amdgcn.raw.buffer.load.v4i32");
FULMEN_DEVICE BufferDescriptor buffer_descriptor(const void* base, int bytes, int flags) {
  const auto address = reinterpret_cast<unsigned long long>(base);
  return BufferDescriptor{static_cast<unsigned>(address),
                          static_cast<unsigned>(address >> 32U) & 0xFFFFU,
                          static_cast<unsigned>(bytes), static_cast<unsigned>(flags)};
}
FULMEN_DEVICE auto buffer_load(Plain<2> /*kind*/, BufferDescriptor from, int offset, int fixed) {
  return raw_buffer_load_half(from, offset, fixed, 0);
}
FULMEN_DEVICE auto buffer_load(Plain<4> /*kind*/, BufferDescriptor from, int offset, int fixed) {
  return raw_buffer_load_1(from, offset, fixed, 0);
}
FULMEN_DEVICE auto buffer_load(Plain<8> /*kind*/, BufferDescriptor from, int offset, int fixed) {
  return raw_buffer_load_2(from, offset, fixed, 0);
}
FULMEN_DEVICE auto buffer_load(Plain<16> /*kind*/, BufferDescriptor from, int offset, int fixed) {
  return raw_buffer_load_4(from, offset, fixed, 0);
}
#endif

class Buffer {
 public:
  FULMEN_DEVICE Buffer(const void* base, unsigned bytes)
      : descriptor_(buffer_descriptor(base, static_cast<int>(bytes), kFlags)) {}
  template <class V>
  FULMEN_DEVICE V load(unsigned offset, unsigned fixed) const {
    return __builtin_bit_cast(V, buffer_load(Plain<sizeof(V)>{}, descriptor_,
                                             static_cast<int>(offset), static_cast<int>(fixed)));
  }

 private:
  // Word 3 of the descriptor: a raw buffer of 32-bit data, bounds checked by bytes.
#if defined(__GFX11__) || defined(__GFX12__)
  static constexpr int kFlags = 0x31004000;
#elif defined(__GFX10__)
  static constexpr int kFlags = 0x31014000;
#else
  static constexpr int kFlags = 0x00027000;
#endif
  BufferDescriptor descriptor_;
};

// Keeps a cross-lane instruction, whose result is x, where the source has it. Its other lanes must
// be on there. LLVM before mid-2025 did not know that v_permlanex16 is convergent, and moved it
// into a later branch (docs/internals/amd_facts.md). Inline assembly is convergent in every clang:
// it cannot be moved under a branch, and its operand is computed before it.
template <class V>
FULMEN_DEVICE V keep_here(V x) {
  asm("" : "+v"(x));
  return x;
}

template <int kCount>
FULMEN_DEVICE void keep_together(float (&x)[kCount]) {
  typedef float Together __attribute__((ext_vector_type(kCount)));
  Together all;
#pragma unroll
  for (int n = 0; n < kCount; ++n) all[n] = x[n];
  all = keep_here(all);
#pragma unroll
  for (int n = 0; n < kCount; ++n) x[n] = all[n];
}

FULMEN_DEVICE unsigned shuffle_xor(unsigned x, int mask) {
  return keep_here(static_cast<unsigned>(
      __builtin_amdgcn_ds_bpermute((lane_id() ^ mask) * 4, static_cast<int>(x))));
}
FULMEN_DEVICE float shuffle_xor(float x, int mask) {
  return __builtin_bit_cast(float, shuffle_xor(__builtin_bit_cast(unsigned, x), mask));
}

FULMEN_DEVICE float larger(float a, float b) { return __builtin_fmaxf(a, b); }
FULMEN_DEVICE float absolute(float x) { return __builtin_fabsf(x); }
FULMEN_DEVICE float copy_sign(float x, float sign) { return __builtin_copysignf(x, sign); }
FULMEN_DEVICE unsigned long long ballot(bool x) {
  if constexpr (kWaveSize == 32) {
    return __builtin_amdgcn_ballot_w32(x);
  } else {
    return __builtin_amdgcn_ballot_w64(x);
  }
}
// The number of the lowest bit that is set; x is not 0.
FULMEN_DEVICE int lowest_bit(unsigned x) { return __builtin_ctz(x); }
FULMEN_DEVICE bool any_lane(bool x) { return ballot(x) != 0; }
template <class V>
FULMEN_DEVICE V evaluated(V x) {
  asm("" : "+v"(x));
  return x;
}
FULMEN_DEVICE unsigned evaluated_uniform(unsigned x) {
  asm("" : "+s"(x));
  return x;
}
FULMEN_DEVICE unsigned uniform(unsigned x) { return __builtin_amdgcn_readfirstlane(x); }
// Two numbers at once: CDNA3 has packed fp32 arithmetic, elsewhere this is two instructions.
typedef float Pair __attribute__((ext_vector_type(2)));
FULMEN_DEVICE Pair multiply_add(Pair a, float b, float c) { return a * Pair{b, b} + Pair{c, c}; }
FULMEN_DEVICE Pair add(Pair a, Pair b) { return a + b; }
// The compiler moves nothing across.
FULMEN_DEVICE void schedule_fence() { __builtin_amdgcn_sched_barrier(0); }
#if __has_builtin(__builtin_amdgcn_exp2f) && __has_builtin(__builtin_amdgcn_logf)
FULMEN_DEVICE float exp2(float x) { return __builtin_amdgcn_exp2f(x); }
FULMEN_DEVICE float log2(float x) { return __builtin_amdgcn_logf(x); }
#else  // clang before 17
FULMEN_DEVICE float exp2(float x) { return __builtin_exp2f(x); }
FULMEN_DEVICE float log2(float x) { return __builtin_log2f(x); }
#endif
FULMEN_DEVICE float reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }
FULMEN_DEVICE float fused(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
FULMEN_DEVICE float rounded_product(float x, float y) { return evaluated(x * y); }
FULMEN_DEVICE float square_root(float x) { return __builtin_sqrtf(x); }
FULMEN_DEVICE float round_down(float x) { return __builtin_floorf(x); }
FULMEN_DEVICE float round_to_even(float x) { return __builtin_rintf(x); }
FULMEN_DEVICE float half_to_float(unsigned short bits) {
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
}
FULMEN_DEVICE unsigned pack_halves(float a, float b) {
  const auto low = __builtin_bit_cast(unsigned short, static_cast<_Float16>(a));
  const auto high = __builtin_bit_cast(unsigned short, static_cast<_Float16>(b));
  return low | static_cast<unsigned>(high) << 16U;
}
// Rounded to nearest, ties to even; NaN stays NaN.
FULMEN_DEVICE unsigned round_bf16_in_place(float x) {
  const unsigned bits = __builtin_bit_cast(unsigned, x);
  const unsigned rounded = bits + 0x7FFFU + __builtin_amdgcn_ubfe(bits, 16, 1);
  return __builtin_isnan(x) ? bits | 0x400000U : rounded;
}
#if defined(__gfx950__)
// One instruction.
FULMEN_DEVICE unsigned pack_bf16(float a, float b) {
  typedef __bf16 Bf16Pair __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(unsigned, Bf16Pair{static_cast<__bf16>(a), static_cast<__bf16>(b)});
}
#else
FULMEN_DEVICE unsigned pack_bf16(float a, float b) {
  return __builtin_amdgcn_perm(round_bf16_in_place(b), round_bf16_in_place(a), 0x07060302U);
}
#endif

typedef _Float16 Halves __attribute__((ext_vector_type(2)));
// a.low b.low + a.high b.high + sum, of fp16 numbers: on chips with v_dot2_f32_f16.
FULMEN_DEVICE float dot2(unsigned a, unsigned b, float sum) {
  return __builtin_amdgcn_fdot2(__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b), sum,
                                false);
}

// The low, or the high, 16 bits of a, and above them those of b.
FULMEN_DEVICE unsigned halves(unsigned a, unsigned b, bool high) {
  return __builtin_amdgcn_perm(b, a, high ? 0x07060302U : 0x05040100U);
}

// Byte i of a in bits 0 to 7, byte j of b in bits 16 to 23; kHigh: in bits 8 to 15 and 24 to 31.
// The others are 0.
template <bool kHigh>
FULMEN_DEVICE unsigned byte_pair(unsigned a, int i, unsigned b, int j) {
  const unsigned low = static_cast<unsigned>(i), high = static_cast<unsigned>(j) + 4U;
  return __builtin_amdgcn_perm(
      b, a, kHigh ? 0x000C000CU | low << 8U | high << 24U : 0x0C000C00U | low | high << 16U);
}
// Sums and products of two fp16 numbers each.
FULMEN_DEVICE unsigned add_halves(unsigned a, unsigned b) {
  return __builtin_bit_cast(unsigned,
                            __builtin_bit_cast(Halves, a) + __builtin_bit_cast(Halves, b));
}
FULMEN_DEVICE unsigned multiply_halves(unsigned a, unsigned b) {
  return __builtin_bit_cast(unsigned,
                            __builtin_bit_cast(Halves, a) * __builtin_bit_cast(Halves, b));
}
// The number of an int8, byte i of x.
FULMEN_DEVICE float int8_to_float(unsigned x, int i) {
  // One v_bfe_i32: from a signed char clang extends the sign twice.
  return static_cast<float>(static_cast<int>(x << (24U - 8U * static_cast<unsigned>(i))) >> 24);
}
constexpr bool kConvertsE4m3 = false;
FULMEN_DEVICE unsigned e4m3_pair_half(unsigned a, int i, unsigned b, int j);
FULMEN_DEVICE unsigned int8_pair_bf16(unsigned a, int i, unsigned b, int j) {
  return halves(__builtin_bit_cast(unsigned, int8_to_float(a, i)),
                __builtin_bit_cast(unsigned, int8_to_float(b, j)), true);
}

// Four numbers, of a magnitude that E4M3 has, rounded to it, to nearest, in the order of bytes.
// kFnuzCodes: E4M3 without -0, whose codes are half of the numbers that they are elsewhere.
#if defined(__gfx942__)
constexpr bool kFnuzCodes = true;
#else
constexpr bool kFnuzCodes = false;
#endif
#if defined(__gfx942__) || defined(__gfx950__) || defined(__gfx1200__) || defined(__gfx1201__)
FULMEN_DEVICE unsigned pack_e4m3(float a, float b, float c, float d) {
  const int low = __builtin_amdgcn_cvt_pk_fp8_f32(a, b, 0, false);
  return static_cast<unsigned>(__builtin_amdgcn_cvt_pk_fp8_f32(c, d, low, true));
}

constexpr bool kConvertsFp8 = true;
// The number of a code, byte i of x: one instruction, which names the byte.
template <bool kE5m2>
FULMEN_DEVICE float fp8_to_float(unsigned x, int i) {
  const int codes = static_cast<int>(x);
  if constexpr (kE5m2) {
    return i == 0   ? __builtin_amdgcn_cvt_f32_bf8(codes, 0)
           : i == 1 ? __builtin_amdgcn_cvt_f32_bf8(codes, 1)
           : i == 2 ? __builtin_amdgcn_cvt_f32_bf8(codes, 2)
                    : __builtin_amdgcn_cvt_f32_bf8(codes, 3);
  } else {
    return i == 0   ? __builtin_amdgcn_cvt_f32_fp8(codes, 0)
           : i == 1 ? __builtin_amdgcn_cvt_f32_fp8(codes, 1)
           : i == 2 ? __builtin_amdgcn_cvt_f32_fp8(codes, 2)
                    : __builtin_amdgcn_cvt_f32_fp8(codes, 3);
  }
}
// Those of its low, or of its high, two bytes, also by one.
template <bool kE5m2>
FULMEN_DEVICE void fp8_to_floats(unsigned x, bool high, float (&y)[2]) {
  typedef float Floats __attribute__((ext_vector_type(2)));
  const int codes = static_cast<int>(x);
  Floats both;
  if constexpr (kE5m2) {
    both = high ? __builtin_amdgcn_cvt_pk_f32_bf8(codes, true)
                : __builtin_amdgcn_cvt_pk_f32_bf8(codes, false);
  } else {
    both = high ? __builtin_amdgcn_cvt_pk_f32_fp8(codes, true)
                : __builtin_amdgcn_cvt_pk_f32_fp8(codes, false);
  }
  y[0] = both[0];
  y[1] = both[1];
}
#else
FULMEN_DEVICE unsigned pack_e4m3(float a, float b, float c, float d);
constexpr bool kConvertsFp8 = false;
template <bool kE5m2>
FULMEN_DEVICE float fp8_to_float(unsigned x, int i);
template <bool kE5m2>
FULMEN_DEVICE void fp8_to_floats(unsigned x, bool high, float (&y)[2]);
#endif

// Two probabilities, rounded toward zero by one instruction (rounding to nearest takes three). They
// come 2^kHalfShift too large, which makes up for what truncation takes on average, and leaves a 1
// a 1.
constexpr float kHalfShift = 5.0803e-4F, kHalfUnshift = 0.99964792F;
FULMEN_DEVICE unsigned pack_half_probabilities(float a, float b) {
  return __builtin_bit_cast(unsigned, __builtin_amdgcn_cvt_pkrtz(a, b));
}

// Two probabilities: never NaN beside a sum that is not. Ties go up, which rounding to nearest lets
// be.
FULMEN_DEVICE unsigned pack_bf16_probabilities(float a, float b) {
#if defined(__gfx950__)
  return pack_bf16(a, b);
#else
  return halves(__builtin_bit_cast(unsigned, a) + 0x8000U,
                __builtin_bit_cast(unsigned, b) + 0x8000U, true);
#endif
}

}  // namespace fulmen::kernels

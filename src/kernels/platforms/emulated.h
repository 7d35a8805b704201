// The host, beside the emulator: every access and collective goes through its table.
// FULMEN_WAVE_SIZE is the emulated chip's.
#pragma once

#include "core/types.h"
#include "platforms/emulator_api.h"

#define FULMEN_DEVICE inline
#define FULMEN_INLINED
#define FULMEN_KERNEL(Arguments, body) FULMEN_CLUSTER_KERNEL(Arguments, body, 1)
#define FULMEN_CLUSTER_KERNEL(Arguments, body, cluster)                                          \
  extern "C" {                                                                                   \
  extern const int fulmen_argument_bytes;                                                        \
  const int fulmen_argument_bytes = sizeof(Arguments);                                           \
  extern const int fulmen_cluster;                                                               \
  const int fulmen_cluster = cluster;                                                            \
  void fulmen_bind(const fulmen::kernels::EmulatorApi* api) { fulmen::kernels::emulator = api; } \
  void fulmen_kernel(const void* arguments) { body(*static_cast<const Arguments*>(arguments)); } \
  long long fulmen_take_exponentials() {                                                         \
    const long long taken = fulmen::kernels::exponentials;                                       \
    fulmen::kernels::exponentials = 0;                                                           \
    return taken;                                                                                \
  }                                                                                              \
  }

namespace fulmen::kernels {

static const EmulatorApi* emulator;
static thread_local long long exponentials;  // that lanes of this thread's launch have computed

constexpr int kWaveSize = FULMEN_WAVE_SIZE;

FULMEN_DEVICE void grid_dependency_wait(unsigned long long /*addresses*/ = 1) {
  emulator->grid_dependency_wait();
}

FULMEN_DEVICE void fetch_to_l2(const void* /*p*/) {}

// Where a verb was called. Verbs take it as their last, defaulted argument.
struct Position {
  const char* file;
  int line;
  static constexpr Position here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

FULMEN_DEVICE int thread_id() { return emulator->thread_id(); }
FULMEN_DEVICE int lane_id() { return emulator->thread_id() % kWaveSize; }
FULMEN_DEVICE Int64 workgroup_id() { return emulator->workgroup_id(); }
FULMEN_DEVICE void barrier(Position at = Position::here()) { emulator->barrier(at.file, at.line); }
FULMEN_DEVICE void wave_barrier(Position at = Position::here()) {
  emulator->wave_barrier(at.file, at.line);
}

FULMEN_DEVICE void named_barrier_arrive(int place, Position at = Position::here()) {
  emulator->named_barrier_arrive(place, false, at.file, at.line);
}
FULMEN_DEVICE void named_barrier_sync(int place, Position at = Position::here()) {
  emulator->named_barrier_arrive(place, true, at.file, at.line);
}

template <class Arguments>
FULMEN_DEVICE const Arguments& reload(const Arguments& arguments, Int64 /*when*/) {
  return arguments;
}

FULMEN_DEVICE int recompute(int x, Int64 /*when*/) { return x; }
FULMEN_DEVICE int recompute(int x) { return x; }

template <class V>
FULMEN_DEVICE V lds_load(int offset, Position at = Position::here()) {
  V value;
  emulator->lds_read(offset, &value, sizeof(V), at.file, at.line);
  return value;
}
template <class V>
FULMEN_DEVICE void lds_store(int offset, V value, Position at = Position::here()) {
  emulator->lds_write(offset, &value, sizeof(V), at.file, at.line);
}
template <class V>
FULMEN_DEVICE V global_load(const V* p, Position at = Position::here()) {
  V value;
  emulator->global_read(p, &value, sizeof(V), false, at.file, at.line);
  return value;
}
template <class V>
FULMEN_DEVICE void global_store(V* p, V value, Position at = Position::here()) {
  emulator->global_write(p, &value, sizeof(V), at.file, at.line);
}

template <class V>
FULMEN_DEVICE V global_load_unaligned(const void* p, Position at = Position::here()) {
  V value;
  emulator->global_read(p, &value, sizeof(V), true, at.file, at.line);
  return value;
}
// By pieces of 2 bytes, which have no address to be aligned.
template <class V>
FULMEN_DEVICE void global_store_unaligned(void* p, V value, Position at = Position::here()) {
  for (Size n = 0; n < sizeof(V); n += 2) {
    emulator->global_write(static_cast<unsigned char*>(p) + n,
                           reinterpret_cast<const unsigned char*>(&value) + n, 2, at.file, at.line);
  }
}

// A counter that all workgroups share, which run one after the other: returns what it was, and
// adds 1.
FULMEN_DEVICE unsigned global_draw(unsigned* counter, Position at = Position::here()) {
  const auto drawn = global_load(counter, at);
  global_store(counter, drawn + 1, at);
  return drawn;
}

FULMEN_DEVICE void global_add_int64(Int64* to, Int64 x, Position at = Position::here()) {
  emulator->global_add_int64(to, x, at.file, at.line);
}

constexpr int kAddWidth = 4;
template <int kOffset>
FULMEN_DEVICE void global_add(float* to, const Words<kAddWidth>& values,
                              Position at = Position::here()) {
  emulator->global_add(to + kOffset, reinterpret_cast<const float*>(&values), kAddWidth, at.file,
                       at.line);
}

// Memory behind AMD's buffer descriptor: V at offset + fixed; 0 past the end.
class Buffer {
 public:
  Buffer(const void* base, unsigned bytes) : base_(static_cast<const char*>(base)), bytes_(bytes) {}
  template <class V>
  V load(unsigned offset, unsigned fixed, Position at = Position::here()) const {
    const unsigned long long begin = static_cast<unsigned long long>(offset) + fixed;
    return begin + sizeof(V) <= bytes_ ? global_load(reinterpret_cast<const V*>(base_ + begin), at)
                                       : V{};
  }

 private:
  const char* base_;
  unsigned bytes_;
};

// All lanes' values of x, by lane; valid until this lane's next verb.
template <class V>
FULMEN_DEVICE const V* all_lanes(const char* operation, const V& x, Position at) {
  return static_cast<const V*>(emulator->exchange(operation, &x, sizeof(V), at.file, at.line));
}
// NVIDIA's are shuffles: a lane that is not there hangs the wave.
FULMEN_DEVICE int broadcast(int x, Position at = Position::here()) {
  return all_lanes("broadcast", x, at)[0];
}
FULMEN_DEVICE int wave_id(Position at = Position::here()) {
  return all_lanes("wave_id", emulator->thread_id() / kWaveSize, at)[0];
}
FULMEN_DEVICE float shuffle_xor(float x, int mask, Position at = Position::here()) {
  return all_lanes("shuffle_xor", x, at)[lane_id() ^ mask];
}
FULMEN_DEVICE unsigned shuffle_xor(unsigned x, int mask, Position at = Position::here()) {
  return all_lanes("shuffle_xor", x, at)[lane_id() ^ mask];
}

FULMEN_DEVICE float larger(float a, float b) { return __builtin_fmaxf(a, b); }
FULMEN_DEVICE float absolute(float x) { return __builtin_fabsf(x); }
FULMEN_DEVICE float copy_sign(float x, float sign) { return __builtin_copysignf(x, sign); }
FULMEN_DEVICE unsigned long long ballot(bool x, Position at = Position::here()) {
  const bool* all = all_lanes("ballot", x, at);
  unsigned long long bits = 0;
  for (int l = 0; l < kWaveSize; ++l)
    bits |= static_cast<unsigned long long>(all[l]) << static_cast<unsigned>(l);
  return bits;
}
// The number of the lowest bit that is set; x is not 0.
FULMEN_DEVICE int lowest_bit(unsigned x) { return __builtin_ctz(x); }
FULMEN_DEVICE bool any_lane(bool x, Position at = Position::here()) { return ballot(x, at) != 0; }
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
  ++exponentials;
  return __builtin_exp2f(x);
}
FULMEN_DEVICE float log2(float x) { return __builtin_log2f(x); }
FULMEN_DEVICE float reciprocal(float x) { return 1.0F / x; }
FULMEN_DEVICE float fused(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
FULMEN_DEVICE float rounded_product(float x, float y) { return x * y; }
FULMEN_DEVICE float square_root(float x) { return __builtin_sqrtf(x); }
FULMEN_DEVICE float round_down(float x) { return __builtin_floorf(x); }
FULMEN_DEVICE float round_to_even(float x) { return __builtin_rintf(x); }
FULMEN_DEVICE float half_to_float(unsigned short bits) {
  const unsigned sign = (bits & 0x8000U) << 16U, exponent = bits >> 10U & 31U,
                 fraction = bits & 0x3FFU;
  if (exponent == 31) return __builtin_bit_cast(float, sign | 0x7F800000U | fraction << 13U);
  const float magnitude =
      exponent == 0 ? static_cast<float>(fraction) * 0x1p-24F
                    : __builtin_bit_cast(float, (exponent + 112) << 23U | fraction << 13U);
  return sign != 0 ? -magnitude : magnitude;
}
FULMEN_DEVICE unsigned round_half(float x) {
  const unsigned bits = __builtin_bit_cast(unsigned, x), sign = bits >> 16U & 0x8000U;
  if (x != x) return sign | 0x7E00U;
  const float magnitude = __builtin_fabsf(x);
  if (magnitude >= 65520.0F) return sign | 0x7C00U;
  // Below 2^-14 halves are multiples of 2^-24; adding 1/2 puts the sum's last bit there, rounded by
  // the addition.
  if (magnitude < 0x1p-14F)
    return sign | (__builtin_bit_cast(unsigned, magnitude + 0.5F) - 0x3F000000U);
  const unsigned absolute = bits & 0x7FFFFFFFU;
  return sign | (((absolute + 0xFFFU + (absolute >> 13U & 1U)) >> 13U) - (112U << 10U));
}
FULMEN_DEVICE unsigned pack_halves(float a, float b) {
  return round_half(a) | round_half(b) << 16U;
}
FULMEN_DEVICE unsigned round_bf16(float x) {
  const unsigned bits = __builtin_bit_cast(unsigned, x);
  return x != x ? bits >> 16U | 0x40U : (bits + 0x7FFFU + (bits >> 16U & 1U)) >> 16U;
}
FULMEN_DEVICE unsigned pack_bf16(float a, float b) { return round_bf16(a) | round_bf16(b) << 16U; }

// a.low b.low + a.high b.high + sum, of fp16 numbers.
FULMEN_DEVICE float dot2(unsigned a, unsigned b, float sum) {
  const auto number = [](unsigned bits) {
    return half_to_float(static_cast<unsigned short>(bits));
  };
  return sum + number(a) * number(b) + number(a >> 16U) * number(b >> 16U);
}

// The low, or the high, 16 bits of a, and above them those of b.
FULMEN_DEVICE unsigned halves(unsigned a, unsigned b, bool high) {
  return high ? a >> 16U | (b & 0xFFFF0000U) : (a & 0xFFFFU) | b << 16U;
}

// As platforms/amd.h.
FULMEN_DEVICE unsigned alternate_bytes(unsigned a, unsigned b, bool odd) {
  const unsigned first = odd ? a >> 8U : a, second = odd ? b >> 8U : b;
  return (first & 0xFFU) | (first >> 8U & 0xFF00U) | (second & 0xFFU) << 16U |
         (second & 0xFF0000U) << 8U;
}
FULMEN_DEVICE unsigned byte_signs(unsigned a, unsigned b) {
  return (alternate_bytes(a, b, true) >> 7U & 0x01010101U) * 0xFFU;
}
template <bool kHigh>
FULMEN_DEVICE unsigned byte_pair(unsigned a, int i, unsigned b, int j) {
  const unsigned low = a >> (8 * i) & 0xFFU, high = b >> (8 * j) & 0xFFU;
  return (low | high << 16U) << (kHigh ? 8U : 0U);
}
template <class Operation>
FULMEN_DEVICE unsigned of_halves(unsigned a, unsigned b, const Operation& operation) {
  const auto number = [](unsigned bits) {
    return half_to_float(static_cast<unsigned short>(bits));
  };
  return pack_halves(operation(number(a), number(b)),
                     operation(number(a >> 16U), number(b >> 16U)));
}
// Sums and products of fp16 numbers are rounded once: fp32 has them exactly, or far enough.
FULMEN_DEVICE unsigned add_halves(unsigned a, unsigned b) {
  return of_halves(a, b, [](float x, float y) { return x + y; });
}
FULMEN_DEVICE unsigned multiply_halves(unsigned a, unsigned b) {
  return of_halves(a, b, [](float x, float y) { return x * y; });
}
FULMEN_DEVICE float int8_to_float(unsigned x, int i) {
  return static_cast<float>(static_cast<signed char>(static_cast<unsigned char>(x >> (8 * i))));
}
constexpr bool kConvertsE4m3 = false;
FULMEN_DEVICE unsigned e4m3_pair_half(unsigned a, int i, unsigned b, int j);
FULMEN_DEVICE unsigned int8_pair_bf16(unsigned a, int i, unsigned b, int j) {
  return halves(__builtin_bit_cast(unsigned, int8_to_float(a, i)),
                __builtin_bit_cast(unsigned, int8_to_float(b, j)), true);
}

// Two probabilities, as platforms/nvidia.h or platforms/amd.h: there toward zero.
#if defined(FULMEN_TARGET_SM80)
constexpr float kHalfShift = 0, kHalfUnshift = 1;
FULMEN_DEVICE unsigned pack_half_probabilities(float a, float b) { return pack_halves(a, b); }
#else
constexpr float kHalfShift = 5.0803e-4F, kHalfUnshift = 0.99964792F;
FULMEN_DEVICE unsigned truncate_half(float x) {
  const unsigned rounded = round_half(x);
  return rounded - (half_to_float(static_cast<unsigned short>(rounded)) > x ? 1U : 0U);
}
FULMEN_DEVICE unsigned pack_half_probabilities(float a, float b) {
  return truncate_half(a) | truncate_half(b) << 16U;
}
#endif

// The nearest code of E4M3: of subnormal numbers multiples of 2^-9, else 3 bits behind the leading
// one; ties to even, up to 448; of a NaN 0x7F. FNUZ: half of these, up to 240, and no -0.
#if defined(FULMEN_TARGET_CDNA3)
constexpr bool kFnuzCodes = true;
#else
constexpr bool kFnuzCodes = false;
#endif
FULMEN_DEVICE unsigned e4m3_code(float x) {
  constexpr float kLargest = kFnuzCodes ? 480 : 448, kLeastNormal = 1.0F / 64, kUnit = 1.0F / 512;
  if constexpr (kFnuzCodes) {
    if (x != x) return 0x80U;
    x *= 2;
    if (absolute(x) <= kUnit / 2) return 0;
  }
  const unsigned sign = __builtin_bit_cast(unsigned, x) >> 31U << 7U;
  if (x != x) return 0x7FU;
  const float size = absolute(x) < kLargest ? absolute(x) : kLargest;
  if (size < kLeastNormal) return sign | static_cast<unsigned>(__builtin_nearbyintf(size / kUnit));
  constexpr unsigned kDropped = 20, kBias = 127 - 7;
  unsigned bits = __builtin_bit_cast(unsigned, size);
  bits += (1U << (kDropped - 1)) - 1 + (bits >> kDropped & 1U);
  return sign | ((bits >> kDropped) - (kBias << 3U));
}
FULMEN_DEVICE unsigned pack_e4m3(float a, float b, float c, float d) {
  return e4m3_code(a) | e4m3_code(b) << 8U | e4m3_code(c) << 16U | e4m3_code(d) << 24U;
}

// As platforms/amd.h.
#if defined(FULMEN_TARGET_CDNA3) || defined(FULMEN_TARGET_CDNA4) || defined(FULMEN_TARGET_GFX12)
constexpr bool kConvertsFp8 = true;
#else
constexpr bool kConvertsFp8 = false;
#endif
template <bool kE5m2>
FULMEN_DEVICE float fp8_to_float(unsigned x, int i) {
  constexpr unsigned kDigits = kE5m2 ? 2 : 3, kBias = (kE5m2 ? 15U : 7U) + (kFnuzCodes ? 1U : 0U);
  const unsigned byte = x >> (8 * i) & 0xFFU, size = byte & 0x7FU, sign = byte >> 7U << 31U;
  const unsigned exponent = size >> kDigits, fraction = size & ((1U << kDigits) - 1U);
  if (kFnuzCodes ? byte == 0x80U : kE5m2 ? size > 0x7CU : size == 0x7FU)
    return __builtin_bit_cast(float, 0x7FC00000U);
  if (kE5m2 && !kFnuzCodes && size == 0x7CU) return __builtin_bit_cast(float, sign | 0x7F800000U);
  unsigned bits = (exponent + 127U - kBias) << 23U | fraction << (23U - kDigits);
  if (exponent == 0) {  // a multiple of the smallest number
    const float unit = __builtin_bit_cast(float, (128U - kBias - kDigits) << 23U);
    bits = __builtin_bit_cast(unsigned, static_cast<float>(fraction) * unit);
  }
  return __builtin_bit_cast(float, sign | bits);
}
template <bool kE5m2>
FULMEN_DEVICE void fp8_to_floats(unsigned x, bool high, float (&y)[2]) {
  for (int n = 0; n < 2; ++n) y[n] = fp8_to_float<kE5m2>(x, (high ? 2 : 0) + n);
}

// Two probabilities, ties up: as platforms/amd.h.
FULMEN_DEVICE unsigned pack_bf16_probabilities(float a, float b) {
#if defined(FULMEN_TARGET_CDNA4)
  return pack_bf16(a, b);
#else
  return halves(__builtin_bit_cast(unsigned, a) + 0x8000U,
                __builtin_bit_cast(unsigned, b) + 0x8000U, true);
#endif
}

}  // namespace fulmen::kernels

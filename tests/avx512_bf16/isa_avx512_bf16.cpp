#include "cpu/backward_steps.h"
#include "cpu/decode_combine.h"
#include "cpu/decode_task.h"
#include "cpu/forward_task.h"
#include "cpu/isa/avx512_bf16.h"
#include "cpu/isa_tables.h"
#include "cpu/short_task.h"

namespace fulmen::testing {
namespace {

using cpu::Bf16;

// The vocabulary of pairs without the instructions that only AVX-512 BF16 has.
struct EmulatedPairs : cpu::Avx512Bf16 {
  static Vec dot(Vec sum, Vec a, Vec b) { return fma(odd(a), odd(b), fma(even(a), even(b), sum)); }
  static Vec pack_sequence(Vec a, Vec b) {
    return _mm512_castsi512_ps(_mm512_inserti64x4(_mm512_castsi256_si512(narrow_bf16(a)), narrow_bf16(b), 1));
  }
  static Vec pack_pair(Vec a, Vec b) { return pair_halves(_mm512_castps_si512(pack_sequence(a, b))); }

  using Avx512::store_from_float;
  using Avx512::stream_from_float;

 private:
  static Vec even(Vec x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 16)); }
  static Vec odd(Vec x) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
  }
};

}  // namespace

const cpu::IsaTable& emulated_pairs_table() {
  static constexpr cpu::IsaTable kTable{.name = "pairs_emulated",
                                        .lanes = EmulatedPairs::kLanes,
                                        .group = {1, 1, 2},
                                        .tile_task = {nullptr, nullptr, cpu::forward_task<EmulatedPairs, Bf16>},
                                        .short_task = {nullptr, nullptr, cpu::short_task<EmulatedPairs, Bf16>},
                                        .decode_task = {nullptr, nullptr, cpu::decode_task<EmulatedPairs, Bf16>},
                                        .decode_combine = {nullptr, nullptr, cpu::decode_combine<EmulatedPairs, Bf16>},
                                        .backward = {nullptr, nullptr, cpu::backward_step<EmulatedPairs, Bf16>}};
  return kTable;
}

}  // namespace fulmen::testing

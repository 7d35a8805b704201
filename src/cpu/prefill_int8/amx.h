// Prefill with q k^T in int8 on matrix tiles (AMX): 64 codes a row of a tile. Values and
// probabilities are those of prefill/amx.h.
#pragma once

#include "cpu/prefill/amx.h"
#include "cpu/prefill_int8/vector.h"

namespace fulmen::cpu {

FULMEN_INLINE WithInt8Places<AmxScratch> amx_int8_scratch(const Problem& problem, int lanes,
                                                          int codes, int block_n, int tiles) {
  return {amx_scratch(problem, codes, block_n, tiles), problem, lanes, tiles};
}

template <class Isa, class T, class Product>
class PrefillInt8Tiles : public PrefillInt8Task<Isa, T, Product> {
  using Base = PrefillInt8Task<Isa, T, Product>;

 public:
  using Base::Base;

 protected:
  // Codes of keys -> left operand.
  void pack_code_tiles(int64_t first, int count, float* out) {
    using Numbers = typename Product::Numbers;
    const KeyCodes& codes = this->call_.codes;
    pack_key_tiles<Numbers>(
        StridedRows<float>{codes.words_of(this->task_.batch, this->kv_head_, first),
                           codes.key_stride},
        count, words_of<Product>(this->problem_.head_dim), out);
  }
};

template <class Isa, class T, class Product>
void amx_prefill_int8_task(const ForwardCall& call, const PrefillRows& task, float* scratch) {
  const auto layout = amx_int8_scratch(*call.problem, Isa::kLanes, Product::kGroup, call.block_n,
                                       call.tiles_per_task);
  AmxPrefillTask<Isa, T, Product, PrefillInt8Tiles<Isa, T, Product>>(call, task, scratch, layout,
                                                                     layout.places)
      .run();
}

}  // namespace fulmen::cpu

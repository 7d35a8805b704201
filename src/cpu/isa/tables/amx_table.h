// The table of a tile instruction set: the real one, or the tests' emulation.
#pragma once

#include <type_traits>

#include "cpu/backward/amx.h"
#include "cpu/backward/steps.h"
#include "cpu/decode/amx.h"
#include "cpu/decode/combine.h"
#include "cpu/isa/amx.h"
#include "cpu/isa/table.h"
#include "cpu/prefill/amx.h"
#include "cpu/prefill_int8/amx.h"
#include "cpu/short/amx.h"

namespace fulmen::cpu {

template <class Isa>
int64_t amx_scratch_floats(const Problem& problem, int block_n, int tiles) {
  return amx_scratch(problem, Isa::kGroup, block_n, tiles).total;
}

template <class Isa>
int64_t amx_short_floats(const Problem& problem) {
  return short_scratch(problem, Isa::kLanes, Isa::kGroup, kTile).total;
}

template <class Isa>
int64_t amx_decode_floats(const ForwardCall& call) {
  return amx_decode_scratch(call, Isa::kLanes, Isa::kGroup).total;
}

template <class Isa>
int64_t amx_backward_floats(const Problem& problem, int block_n, int64_t held_keys) {
  return amx_backward_scratch(problem, Isa::kGroup, block_n, held_keys).total;
}

template <class Isa, class Product>
int64_t amx_int8_floats(const Problem& problem, int block_n, int tiles) {
  return amx_int8_scratch(problem, Isa::kLanes, Product::kGroup, block_n, tiles).total;
}

// Isa: Amx or AmxFp16 over some tiles; T and dtype: the elements of its words; Int8Tiles: as
// AmxInt8Instructions. flags: the compiler's, for compiled score functions; null: there are none.
template <class Isa, class T, class Int8Tiles>
constexpr IsaTable amx_table(const char* name, DType dtype, const char* flags = nullptr) {
  IsaTable table{.name = name,
                 .lanes = Isa::kLanes,
                 .block_n = 128,
                 .scratch_floats = amx_scratch_floats<Isa>,
                 .short_floats = amx_short_floats<Isa>,
                 .decode_slots = kAmxDecodeSlots,
                 .decode_floats = amx_decode_floats<Isa>,
                 .amx_tiles = true};
  const int index = static_cast<int>(dtype);
  table.group[index] = Isa::kGroup;
  table.prefill_task[index] = amx_prefill_task<Isa, T>;
  table.short_task[index] = amx_short_task<Isa, T>;
  table.decode_task[index] = amx_decode_task<Isa, T>;
  table.decode_combine[index] = decode_combine<Isa, T>;
  using Product = AmxInt8<Isa, Int8Tiles>;
  table.int8.codes = Product::kGroup;
  table.int8.prefill_task[index] = amx_prefill_int8_task<Isa, T, Product>;
  table.int8.code_keys[index] = code_keys<Isa, T, Product>;
  table.int8.scratch_floats = amx_int8_floats<Isa, Product>;
  if (flags != nullptr) {
    table.numbers = "Avx512Numbers";
    table.flags = flags;
  }
  // Backward's vectors between the products know pairs of bf16 alone.
  if constexpr (std::is_same_v<T, Bf16>) {
    table.backward[index] = backward_step<Isa, T, AmxBackwardTask<Isa, T>>;
    table.backward_floats = amx_backward_floats<Isa>;
  }
  return table;
}

}  // namespace fulmen::cpu

// The bias's gradient: tiles of dS^T transposed and stored, or added to sums in fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpu/backward/call.h"
#include "cpu/tile/finish_rows.h"
#include "cpu/tile/pack.h"
#include "cpu/tile/storage.h"
#include "cpu/tile/tile.h"

namespace fulmen::cpu {

// tile [keys][kBlockM] -> out [rows][keys], rows `stride` apart. kAdd: onto what is there.
template <class Isa, class BiasT, bool kAdd>
__attribute__((noinline)) void store_transposed(const float* tile, int rows, int keys, BiasT* out,
                                                int64_t stride) {
  using Vec = typename Isa::Vec;
  constexpr int kLanes = Isa::kLanes;
  for (int key = 0; key < keys; key += kLanes) {
    const int count = keys - key < kLanes ? keys - key : kLanes;
    for (int row = 0; row < rows; row += kLanes) {
      Vec block[kLanes];
      for (int i = 0; i < kLanes; ++i)
        block[i] = i < count ? Isa::load(tile + (key + i) * kBlockM + row) : Isa::zero();
      Isa::transpose(block);
      const int valid = rows - row < kLanes ? rows - row : kLanes;
      for (int i = 0; i < valid; ++i) {
        BiasT* to = out + (row + i) * stride + key;
        Vec x = block[i];
        if constexpr (kAdd)
          x = Isa::add(x, count == kLanes ? Isa::load_as_float(to) : Isa::load_as_float(to, count));
        store_row_part<Isa>(to, x, count);
      }
    }
  }
}

// out[key] += sum over the tile's rows; vectors hold zeros past the last row.
template <class Isa>
__attribute__((noinline)) void add_row_sums(const float* tile, int rows, int keys, float* out) {
  for (int key = 0; key < keys; ++key) {
    auto sum = Isa::load(tile + key * kBlockM);
    for (int row = Isa::kLanes; row < rows; row += Isa::kLanes)
      sum = Isa::add(sum, Isa::load(tile + key * kBlockM + row));
    out[key] += Isa::reduce_add(sum);
  }
}

// Zeros of any dtype in rows of so many bytes, `stride` bytes apart.
FULMEN_INLINE void clear_rows(void* out, int64_t rows, int64_t stride, int64_t bytes) {
  for (int64_t row = 0; row < rows; ++row)
    __builtin_memset(static_cast<char*>(out) + row * stride, 0, static_cast<std::size_t>(bytes));
}

FULMEN_INLINE float* bias_sum(const BackwardCall& call, int64_t part, int64_t batch, int64_t head,
                              int64_t row, int64_t key) {
  const BiasSums& s = call.bias_sums;
  return s.data + part * s.part + batch * s.batch + head * s.head + row * s.row + key;
}

// Zeros for the query heads and keys of a unit, before anything is added; where it is stored at
// once, only if the band or the bool mask leaves gaps.
template <class Isa>
void clear_bias_gradient(const BackwardCall& call, const BackwardUnit& unit, int64_t head,
                         int64_t first, int64_t keys) {
  const Problem& p = *call.problem;
  if (call.bias_sums.data != nullptr) {
    constexpr int64_t kBytes = sizeof(float);
    clear_rows(bias_sum(call, unit.part, unit.batch, head, 0, first),
               call.cut.sums_queries ? 1 : p.seqlen_q, call.bias_sums.row * kBytes, keys * kBytes);
  } else if (call.band.left >= 0 || call.band.right >= 0 || call.mask.tiles != nullptr) {
    const int64_t bytes = p.dbias.dtype == DType::fp32 ? 4 : 2;
    char* rows = element_address(call.tensors->dbias, p.dbias, bytes, unit.batch, head, 0);
    clear_rows(rows + first * p.dbias.strides[3] * bytes, p.seqlen_q, p.dbias.strides[2] * bytes,
               keys * bytes);
  }
}

// A tile of dS^T [keys][kBlockM] of query head `head`, at its first row and key.
template <class Isa>
void add_bias_gradient(const BackwardCall& call, const BackwardUnit& unit, int64_t head,
                       int64_t row, int rows, int64_t first, int keys, const float* tile) {
  const Problem& p = *call.problem;
  if (call.bias_sums.data == nullptr) {
    with_bias_type(p.dbias.dtype, [&](auto* type) __attribute__((always_inline)) {
      using BiasT = std::remove_pointer_t<decltype(type)>;
      store_transposed<Isa, BiasT, false>(
          tile, rows, keys,
          element<BiasT>(call.tensors->dbias, p.dbias, unit.batch, head, row, first),
          p.dbias.strides[2]);
    });
  } else if (call.cut.sums_queries) {
    add_row_sums<Isa>(tile, rows, keys, bias_sum(call, unit.part, unit.batch, head, 0, first));
  } else {
    store_transposed<Isa, float, true>(tile, rows, keys,
                                       bias_sum(call, unit.part, unit.batch, head, row, first),
                                       call.bias_sums.row);
  }
}

// One row of dbias from the parts of its sum, in order.
template <class Isa>
void reduce_bias_row(const BackwardCall& call, int64_t batch, int64_t head, int64_t row) {
  const Problem& p = *call.problem;
  const float* sums = bias_sum(call, 0, batch, head, row, 0);
  with_bias_type(p.dbias.dtype, [&](auto* type) __attribute__((always_inline)) {
    using BiasT = std::remove_pointer_t<decltype(type)>;
    BiasT* out = element<BiasT>(call.tensors->dbias, p.dbias, batch, head, row);
    for (int64_t key = 0; key < p.seqlen_k; key += Isa::kLanes) {
      const int64_t left = p.seqlen_k - key;
      auto sum = Isa::zero();
      for (int64_t part = 0; part < call.cut.bias_parts; ++part) {
        const float* from = sums + part * call.bias_sums.part + key;
        sum = Isa::add(sum, left >= Isa::kLanes ? Isa::load_as_float(from)
                                                : Isa::load_as_float(from, static_cast<int>(left)));
      }
      store_row_part<Isa>(out + key, sum, left);
    }
  });
}

}  // namespace fulmen::cpu

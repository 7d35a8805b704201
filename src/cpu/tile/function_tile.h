// Score functions over a tile of scores, queries in lanes: bytecode whose registers are vectors of
// a tile, interpreted in each instruction set.
#pragma once

#include <cstdint>

#include "cpu/tile/function_vectors.h"
#include "cpu/tile/mask_summary.h"
#include "cpu/tile/row_spans.h"
#include "cpu/tile/tile.h"
#include "cpu/tile/tile_function.h"

namespace fulmen::cpu {

template <class Isa>
class FunctionTile {
 public:
  FunctionTile(const TileFunction& function, const FunctionPlace& place, float* scratch)
      : code_(function.code),
        tensors_(function.tensors),
        pairs_(function.pairs),
        pair_tensors_(function.pair_tensors),
        place_(place) {
    for (int rank = 0; rank < score::kRanks; ++rank) {
      registers_[rank] = scratch;
      scratch += code_ == nullptr ? 0 : code_->registers[rank] * kRankElements[rank];
    }
  }

  // The parts that are computed once, of `keys` keys.
  __attribute__((noinline)) void begin(int keys) {
    last_key_ = static_cast<int>(round_up(keys, kFunctionKeys)) - 1;
    const int64_t elements[] = {kFunctionStep, kBlockM, keys, kBlockM + last_key_, kPairElements};
    for (const score::Instruction& one : code_->once)
      run(one, static_cast<int>(round_up(elements[static_cast<int>(one.rank)], kFunctionStep)),
          nullptr, 0);
  }
  // The pairs of kFunctionKeys keys from `key` on in the tile. scores: [kFunctionKeys][kBlockM], or
  // null. Results are then at result().
  __attribute__((noinline)) void pairs(const float* scores, int key) {
    if (pairs_ != nullptr) return pairs_({registers_, pair_tensors_, scores, key, last_key_});
    for (const score::Instruction& one : code_->pairs) run(one, kPairElements, scores, key);
  }
  // [kBlockM], of a key that pairs() was last called for.
  const float* result(int index, int key) const {
    const int group = key % kFunctionKeys;
    const Rows rows = rows_of(code_->results[index], nullptr, key - group);
    return rows.first + rows.stride * group;
  }
  const int32_t* integers(int index, int key) const {
    return reinterpret_cast<const int32_t*>(result(index, key));
  }

 private:
  float* real(score::Rank rank, int32_t index) const {
    const auto r = static_cast<int>(rank);
    return registers_[r] + index * kRankElements[r];
  }

  // A value for the pairs of kFunctionKeys keys from `key` on. Distances lie from the last key's
  // of the first query to the first key's of the last query, so that a key's are in a row.
  Rows rows_of(const score::Operand& of, const float* scores, int key) const {
    if (of.scores) return {scores, kBlockM};
    const float* at = real(of.rank, of.index);
    switch (of.rank) {
      case score::Rank::query:
        return {at, 0};
      case score::Rank::distance:
        return {at + (last_key_ - key), -1};
      default:
        return {at, kBlockM};
    }
  }

  void run(const score::Instruction& one, int count, const float* scores, int key) const {
    if (one.expands) return expand(one, count, scores, key);
    using score::Op;
    float* to = real(one.rank, one.to);
    int32_t* to_int = reinterpret_cast<int32_t*>(to);
    const auto fill = [&](auto* at, auto value, int step) __attribute__((always_inline)) {
      for (int i = 0; i < count; ++i) at[i] = value + step * i;
    };
    const bool distances = one.rank == score::Rank::distance;
    switch (one.op) {
      case Op::constant:
        if (one.type == score::Type::real) {
          for (int i = 0; i < count; ++i) to[i] = one.real;
          return;
        }
        return fill(to_int, one.integer, 0);
      case Op::score:  // read where it is
        return;
      case Op::batch:
        return fill(to_int, static_cast<int32_t>(place_.batch), 0);
      case Op::head:
        return fill(to_int, static_cast<int32_t>(place_.head), 0);
      case Op::query:  // of distances, such that the first key is as far away
        return fill(to_int, static_cast<int32_t>(place_.row) - (distances ? last_key_ : 0), 1);
      case Op::key:
        return fill(to_int, static_cast<int32_t>(place_.key), distances ? 0 : 1);
      case Op::load:
        return load(one, count);
      default:
        break;
    }
    // An operation of fewer arguments than three does not read the others.
    const bool pairs = one.rank == score::Rank::pair;
    Rows arguments[3];
    for (int a = 0; a < 3; ++a) {
      const score::Operand& of = one.args[a < one.arguments ? a : 0];
      arguments[a] = pairs ? rows_of(of, scores, key) : Rows{real(one.rank, of.index), 0};
    }
    apply_vectors<Isa>(one.op, one.type, pairs ? kFunctionKeys : 1, pairs ? kBlockM : count,
                       arguments[0], arguments[1], arguments[2], to);
  }

  void expand(const score::Instruction& one, int count, const float* scores, int key) const {
    if (one.type == score::Type::real) return expand_as<float>(one, count, scores, key);
    return expand_as<int32_t>(one, count, scores, key);
  }
  template <class T>
  void expand_as(const score::Instruction& one, int count, const float* scores, int key) const {
    const score::Operand& from = one.args[0];
    T* to = reinterpret_cast<T*>(real(one.rank, one.to));
    if (from.rank == score::Rank::tile) {
      const T value = reinterpret_cast<const T*>(real(from.rank, from.index))[0];
      for (int i = 0; i < count; ++i) to[i] = value;
      return;
    }
    const bool by_key = from.rank == score::Rank::key;
    const Rows rows =
        by_key ? Rows{real(from.rank, from.index) + key, 1} : rows_of(from, scores, key);
    for (int k = 0; k < kFunctionKeys; ++k, to += kBlockM) {
      const T* row = reinterpret_cast<const T*>(rows.first + rows.stride * k);
      if (by_key) {
        for (int i = 0; i < kBlockM; ++i) to[i] = row[0];
      } else {
        for (int i = 0; i < kBlockM; ++i) to[i] = row[i];
      }
    }
  }

  void load(const score::Instruction& one, int count) const {
    const score::Elements& tensor = tensors_[one.tensor];
    float* to = real(one.rank, one.to);
    auto* to_int = reinterpret_cast<int32_t*>(to);
    switch (tensor.dtype) {
      case DType::fp32:
        return gather<float>(one, tensor, count, to, [](float x) { return x; });
      case DType::fp16:
        return gather<uint16_t>(one, tensor, count, to, [](uint16_t x) { return fp16_bits(x); });
      case DType::bf16:
        return gather<uint16_t>(one, tensor, count, to, [](uint16_t x) { return bf16_bits(x); });
      case DType::int64:
        return gather<int64_t>(one, tensor, count, to_int, [](int64_t x) {
          return static_cast<int32_t>(x > 2147483647      ? 2147483647
                                      : x < -2147483648LL ? -2147483648LL
                                                          : x);
        });
      case DType::int32:
        return gather<int32_t>(one, tensor, count, to_int, [](int32_t x) { return x; });
      case DType::int8:
        return gather<int8_t>(one, tensor, count, to_int, [](int8_t x) { return int32_t{x}; });
      case DType::uint8:
        return gather<uint8_t>(one, tensor, count, to_int, [](uint8_t x) { return int32_t{x}; });
      case DType::boolean:
        return gather<uint8_t>(one, tensor, count, to_int,
                               [](uint8_t x) { return x != 0 ? 1 : 0; });
      default:  // no dtype of functions' tensors
        return;
    }
  }
  template <class Stored, class To, class Convert>
  void gather(const score::Instruction& one, const score::Elements& tensor, int count, To* to,
              Convert convert) const {
    // Places are computed in a loop of their own, which becomes vectors where 32 bits hold them.
    if (one.arguments > 0 && is_near(tensor)) {
      for (int i = 0; i < count; i += kPairElements)
        gather_near<Stored>(one, tensor, i, count - i < kPairElements ? count - i : kPairElements,
                            to, convert);
      return;
    }
    const auto* data = static_cast<const Stored*>(tensor.data);
    const int32_t* indices[score::kMaxArguments] = {};
    for (int d = 0; d < one.arguments; ++d) indices[d] = integers_at(one, d);
    for (int i = 0; i < count; ++i) {
      int64_t offset = 0;
      bool inside = true;
      for (int d = 0; d < one.arguments; ++d) {
        const int64_t index = indices[d][i];
        inside = inside && index >= 0 && index < tensor.shape[d];
        if (!inside) break;  // no offset is computed of an index of any size
        offset += index * tensor.strides[d];
      }
      to[i] = inside ? convert(data[offset]) : To{};
    }
  }
  // Whether a tensor has elements, and their places are numbers of 32 bits.
  FULMEN_INLINE static bool is_near(const score::Elements& tensor) {
    constexpr int64_t kMost = 2147483647;
    int64_t farthest = 0;
    for (int d = 0; d < tensor.dims; ++d) {
      const int64_t last = tensor.shape[d] - 1;
      const int64_t stride = tensor.strides[d] < 0 ? -tensor.strides[d] : tensor.strides[d];
      if (last < 0 || last >= kMost || (last > 0 && stride > (kMost - farthest) / last))
        return false;
      farthest += last * stride;
    }
    return true;
  }
  // The same of [first, first + count), of a tensor that is_near().
  template <class Stored, class To, class Convert>
  void gather_near(const score::Instruction& one, const score::Elements& tensor, int first,
                   int count, To* to, Convert convert) const {
    const auto* data = static_cast<const Stored*>(tensor.data);
    int32_t offsets[kPairElements] = {}, inside[kPairElements];
    for (int i = 0; i < count; ++i) inside[i] = 1;
    for (int d = 0; d < one.arguments; ++d) {
      const int32_t* indices = integers_at(one, d) + first;
      const auto extent = static_cast<uint32_t>(tensor.shape[d]);
      const auto stride = static_cast<int32_t>(tensor.strides[d]);
      for (int i = 0; i < count; ++i) {
        const bool here = static_cast<uint32_t>(indices[i]) < extent;
        offsets[i] += (here ? indices[i] : 0) * stride;
        inside[i] = here ? inside[i] : 0;
      }
    }
    // The first element, whatever an index outside says, is there to be read.
    for (int i = 0; i < count; ++i) {
      const To value = convert(data[offsets[i]]);
      to[first + i] = inside[i] != 0 ? value : To{};
    }
  }

  // An argument of a load, which has its rank.
  const int32_t* integers_at(const score::Instruction& one, int argument) const {
    return reinterpret_cast<const int32_t*>(real(one.rank, one.args[argument].index));
  }

  const score::Bytecode* code_;
  const score::Elements* tensors_;
  PairsFunction pairs_;
  const PairsTensor* pair_tensors_;
  FunctionPlace place_;
  int last_key_ = kFunctionKeys - 1;  // of the tile, rounded up to whole groups
  float* registers_[score::kRanks];
};

// x -> x where keeps is not 0, else -inf: in ints, which become vectors.
FULMEN_INLINE void mask_row(const int32_t* keeps, int count, float* x) {
  constexpr uint32_t kMinusInfinityBits = 0xFF800000U;
  for (int i = 0; i < count; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + i, sizeof bits);
    const uint32_t kept = keeps[i] != 0 ? ~0U : 0U;
    bits = (bits & kept) | (kMinusInfinityBits & ~kept);
    __builtin_memcpy(x + i, &bits, sizeof bits);
  }
}

// The pairs of a tile [keys][kBlockM] that mask_mod or the block mask leave out become -inf.
template <class Isa>
__attribute__((noinline)) void mask_tile(const TileFunction& mask, const BlockStates& blocks,
                                         const FunctionPlace& place, int keys, float* tile,
                                         float* scratch) {
  constexpr int kBlockRows = 16;  // sizes of blocks are multiples of it
  constexpr int kRowBlocks = kBlockM / kBlockRows;
  FunctionTile<Isa> function(mask, place, scratch);
  if (mask.any()) function.begin(keys);
  for (int key = 0; key < keys;) {
    const int64_t left = blocks.block_end(place.key + key) - place.key;
    const int end = left < keys ? static_cast<int>(left) : keys;
    BlockState states[kRowBlocks];
    bool asks = false, whole = true;
    for (int i = 0; i < kRowBlocks; ++i) {
      states[i] = blocks.of(place.batch, place.head, place.row + i * kBlockRows, place.key + key);
      asks = asks || (states[i] == BlockState::partial && mask.any());
      whole = whole && states[i] == BlockState::partial;
    }
    for (; key < end; ++key) {
      if (asks && key % kFunctionKeys == 0) function.pairs(nullptr, key);
      const int32_t* keeps = nullptr;
      if (asks) keeps = function.integers(0, key);
      float* to = tile + static_cast<int64_t>(key) * kBlockM;
      if (whole && asks) {
        mask_row(keeps, kBlockM, to);
        continue;
      }
      for (int i = 0; i < kRowBlocks; ++i) {
        float* row = to + i * kBlockRows;
        if (states[i] == BlockState::none) {
          for (int at = 0; at < kBlockRows; ++at) row[at] = -__builtin_inff();
        } else if (states[i] == BlockState::partial && asks) {
          mask_row(keeps + i * kBlockRows, kBlockRows, row);
        }
      }
    }
  }
}

// scores [keys][kBlockM] in natural units become score_mod of them; -inf, a masked pair, stays.
// max: [kBlockM], of the new ones, a NaN where one is.
template <class Isa>
__attribute__((noinline)) void score_tile_by(const TileFunction& score, const FunctionPlace& place,
                                             int rows, KeySpan keys, float* scores, float* max,
                                             float* scratch) {
  using Vec = typename Isa::Vec;
  const Vec minus_infinity = Isa::set1(-__builtin_inff());
  FunctionTile<Isa> function(score, place, scratch);
  function.begin(keys.end);
  const int padded = static_cast<int>(round_up(rows, Isa::kLanes));
  for (int i = 0; i < padded; i += Isa::kLanes) Isa::store(max + i, minus_infinity);
  for (int key = keys.begin; key < keys.end; ++key) {
    float* row = scores + static_cast<int64_t>(key) * kBlockM;
    // The tile has room for whole groups of keys: what lies behind the last one does not matter.
    if (key % kFunctionKeys == 0) function.pairs(row, key);
    const float* to = function.result(0, key);
    for (int i = 0; i < padded; i += Isa::kLanes) {
      const Vec x =
          Isa::select_minus_infinity(Isa::load(row + i), minus_infinity, Isa::load(to + i));
      Isa::store(row + i, x);
      Isa::store(max + i, Isa::max(Isa::load(max + i), x));
    }
  }
}

// Backward: scores [keys][kBlockM] become probabilities, slope is multiplied by score_mod's
// derivative, and 0 where a probability is. numbers: LseNumbers of the rows. kept: where the scores
// are kept, or null.
template <class Isa>
__attribute__((noinline)) void probabilities_by(const TileFunction& score,
                                                const FunctionPlace& place, KeySpan keys,
                                                const float* minus_lse, float* scores, float* slope,
                                                float* kept, float* scratch) {
  using Vec = typename Isa::Vec;
  const Vec minus_infinity = Isa::set1(-__builtin_inff());
  FunctionTile<Isa> function(score, place, scratch);
  const int value = static_cast<int>(score.code->results.size()) - 1;
  function.begin(keys.end);
  for (int key = keys.begin; key < keys.end; ++key) {
    float* row = scores + static_cast<int64_t>(key) * kBlockM;
    if (key % kFunctionKeys == 0) function.pairs(row, key);
    const float* derivatives = function.result(0, key);
    const float* values = function.result(value, key);
    for (int i = 0; i < kBlockM; i += Isa::kLanes) {
      const Vec before = Isa::load(row + i);
      if (kept != nullptr) Isa::store(kept + static_cast<int64_t>(key) * kBlockM + i, before);
      const Vec x = Isa::select_minus_infinity(before, minus_infinity, Isa::load(values + i));
      Vec p[1] = {Isa::mul(Isa::add(x, Isa::load(minus_lse + i)), Isa::set1(algorithm::kLog2E))};
      Isa::template exp2<5>(p);
      Isa::store(row + i, p[0]);
      float* to = slope + static_cast<int64_t>(key) * kBlockM + i;
      // A NaN of p stays one.
      const Vec by = Isa::mul(Isa::load(to), Isa::load(derivatives + i));
      Isa::store(to, Isa::select_less(p[0], Isa::set1(1e-38F), Isa::zero(), by));
    }
  }
}

// Adds ds [keys][kBlockM] times the derivatives by the elements that a pair reads to these sums, in
// the order of keys and queries.
template <class Isa>
__attribute__((noinline)) void add_function_gradients(const TileFunction& score,
                                                      const ScoreFunctions::Impl& functions,
                                                      const FunctionPlace& place, int rows,
                                                      int keys, const float* scores,
                                                      const float* ds, float* sums,
                                                      const int64_t* offsets, float* scratch) {
  FunctionTile<Isa> function(score, place, scratch);
  function.begin(keys);
  for (int key = 0; key < keys; ++key) {
    const int64_t tile_row = static_cast<int64_t>(key) * kBlockM;
    if (key % kFunctionKeys == 0) function.pairs(scores + tile_row, key);
    for (const LoadResult& load : functions.loads) {
      const ScoreFunctions::Tensor& tensor = functions.tensors[load.tensor];
      const float* by = function.result(load.by, key);
      float* to = sums + offsets[load.tensor];
      for (int i = 0; i < rows; ++i) {
        const float gradient = ds[tile_row + i];
        if (gradient == 0.0F) continue;
        int64_t place_of = 0;
        bool inside = true;
        for (int d = 0; d < tensor.dims; ++d) {
          const int32_t index = function.integers(load.index + d, key)[i];
          inside = inside && index >= 0 && index < tensor.shape[d];
          if (!inside) break;
          place_of = place_of * tensor.shape[d] + index;
        }
        if (inside) to[place_of] += gradient * by[i];
      }
    }
  }
}

}  // namespace fulmen::cpu

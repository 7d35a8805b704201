// Operands and results of vector instructions, each in a loop over lanes.
#pragma once

#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "emulator/machine_code/instructions/float16.h"
#include "emulator/machine_code/wave.h"

namespace fulmen::gpu::isa {

template <int W>
uint32_t* row(const Wave& w, int r) {
  return w.vectors + static_cast<std::ptrdiff_t>(r) * W;
}

inline uint64_t scalar64(const Wave& w, const Operand& o) {
  if (o.source == Operand::Source::literal) return o.value;
  if (o.source != Operand::Source::scalar) return 0;
  if (o.index == kScc) return w.scc ? 1 : 0;
  const uint64_t low = w.scalars[static_cast<std::size_t>(o.index)];
  return o.count > 1 ? low | uint64_t{w.scalars[static_cast<std::size_t>(o.index) + 1]} << 32U
                     : low;
}
inline uint32_t scalar32(const Wave& w, const Operand& o) {
  return static_cast<uint32_t>(scalar64(w, o));
}
inline void set_scalar(Wave& w, const Operand& o, uint64_t value) {
  if (o.source != Operand::Source::scalar) return;  // "null"
  w.scalars[static_cast<std::size_t>(o.index)] = static_cast<uint32_t>(value);
  if (o.count > 1)
    w.scalars[static_cast<std::size_t>(o.index) + 1] = static_cast<uint32_t>(value >> 32U);
}
// A mask of lanes, of 32 or 64 bits.
inline uint64_t lane_mask(const Wave& w, const Operand& o) { return scalar64(w, o) & w.all_lanes; }

// cross_lane.cpp: the lanes of a DPP source, and which of them are written.
template <int W>
void read_dpp(const Wave& w, const Instruction& i, const uint32_t* from, uint32_t* to);
template <int W>
uint64_t dpp_written(const Wave& w, const Instruction& i);

// A source that is not a vector register as it is.
template <int W>
void make_source(const Wave& w, const Instruction& i, int n, int word, uint32_t signs,
                 uint32_t* to) {
  const Operand& o = i.operand[static_cast<std::size_t>(n)];
  if (o.source == Operand::Source::vector) {
    const uint32_t* from = row<W>(w, o.index + word);
    if (n == 1 && i.dpp.mode != Dpp::Mode::none) {
      read_dpp<W>(w, i, from, to);
    } else {
      std::memcpy(to, from, sizeof(uint32_t) * W);
    }
  } else {
    const uint32_t value = static_cast<uint32_t>(scalar64(w, o) >> (32 * word));
    for (int l = 0; l < W; ++l) to[l] = value;
  }
  if (const int part = n >= 1 && n <= 2 ? i.source_part[n - 1] : 6; part < 6) {
    const int shift = part < 4 ? 8 * part : 16 * (part - 4), unused = part < 4 ? 24 : 16;
    for (int l = 0; l < W; ++l) {
      const uint32_t up = to[l] >> shift << unused;
      to[l] =
          o.sign_extend ? static_cast<uint32_t>(static_cast<int32_t>(up) >> unused) : up >> unused;
    }
  }
  if (word == 0 && (o.absolute || o.negate)) {
    for (int l = 0; l < W; ++l)
      to[l] = (o.absolute ? to[l] & ~signs : to[l]) ^ (o.negate ? signs : 0);
  }
}

template <int W, class T>
class Source {
 public:
  Source(const Wave& w, const Instruction& i, int n) {
    const Operand& o = i.operand[static_cast<std::size_t>(n)];
    for (int word = 0; word < kWords; ++word) {
      if (o.source == Operand::Source::vector && !o.changed) {
        lanes_[word] = row<W>(w, o.index + word);
      } else {
        constexpr uint32_t kSigns = sizeof(T) == 2 ? 0x80008000U : 0x80000000U;
        make_source<W>(w, i, n, word, kSigns, made_[word]);
        lanes_[word] = made_[word];
      }
    }
    if constexpr (sizeof(T) == 2) shift_ = (i.op_sel >> (n - 1) & 1) != 0 ? 16 : 0;
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  T operator[](int l) const {
    if constexpr (sizeof(T) == 8) {
      return std::bit_cast<T>(lanes_[0][l] | uint64_t{lanes_[1][l]} << 32U);
    } else if constexpr (sizeof(T) == 2) {
      return std::bit_cast<T>(static_cast<uint16_t>(lanes_[0][l] >> shift_));
    } else {
      return std::bit_cast<T>(lanes_[0][l]);
    }
  }

 private:
  static constexpr int kWords = sizeof(T) == 8 ? 2 : 1;
  const uint32_t* lanes_[kWords];
  unsigned shift_ = 0;
  alignas(64) uint32_t made_[kWords][W];
};

template <int W>
void store_lanes(uint32_t* to, const uint32_t* from, uint64_t mask) {
  if (mask == (W == 64 ? ~uint64_t{0} : (uint64_t{1} << (W % 64)) - 1)) {
    std::memcpy(to, from, sizeof(uint32_t) * W);
    return;
  }
  for (int half = 0; half < W; half += 32) {
    const auto bits = static_cast<uint32_t>(mask >> half);
    for (int l = 0; l < 32; ++l) {
      const uint32_t on = 0U - (bits >> l & 1U);
      to[half + l] = (to[half + l] & ~on) | (from[half + l] & on);
    }
  }
}

template <int W>
uint64_t written_lanes(const Wave& w, const Instruction& i) {
  return i.dpp.mode == Dpp::Mode::none ? w.exec() : w.exec() & dpp_written<W>(w, i);
}

// Some instructions take subnormal numbers for 0.
inline float flush_subnormal(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x;
}

inline float clamped(float x) { return x > 0 ? (x < 1 ? x : 1.0F) : 0.0F; }  // NaN is 0

// Writes results of one type for all lanes. Lanes that are off keep their values.
template <int W, class T>
void store_result(Wave& w, const Instruction& i, T* r) {
  const Operand& o = i.operand[0];
  if constexpr (std::is_same_v<T, bool>) {
    uint64_t mask = 0;
    for (int l = 0; l < W; ++l) mask |= uint64_t{r[l]} << l;
    set_scalar(w, o, mask & w.exec());
  } else if constexpr (sizeof(T) == 8) {
    uint32_t part[W];
    for (int word = 0; word < 2; ++word) {
      for (int l = 0; l < W; ++l)
        part[l] = static_cast<uint32_t>(std::bit_cast<uint64_t>(r[l]) >> (32 * word));
      store_lanes<W>(row<W>(w, o.index + word), part, written_lanes<W>(w, i));
    }
  } else {
    if constexpr (std::is_same_v<T, float>) {
      for (int l = 0; i.clamp && l < W; ++l) r[l] = clamped(r[l]);
    }
    alignas(64) uint32_t bits[W];
    uint32_t* const to = row<W>(w, o.index);
    if constexpr (sizeof(T) == 2) {
      const bool high = (i.op_sel & 8U) != 0;
      const uint32_t kept = high ? 0x0000FFFFU : i.zeroes_high_half ? 0 : 0xFFFF0000U;
      for (int l = 0; l < W; ++l)
        bits[l] = (to[l] & kept) | uint32_t{std::bit_cast<uint16_t>(r[l])} << (high ? 16 : 0);
    } else {
      for (int l = 0; l < W; ++l) bits[l] = std::bit_cast<uint32_t>(r[l]);
    }
    if (i.result_part < 6) {
      const int shift = i.result_part < 4 ? 8 * i.result_part : 16 * (i.result_part - 4);
      const uint32_t part = (i.result_part < 4 ? 0xFFU : 0xFFFFU) << shift;
      for (int l = 0; l < W; ++l)
        bits[l] = (i.unused != 0 ? to[l] & ~part : 0) | (bits[l] << shift & part);
    }
    store_lanes<W>(to, bits, written_lanes<W>(w, i));
  }
}

// The handlers of a function of lanes. Sources begin at `kFirst`; the result's register is the last
// source of an accumulating instruction.
template <std::size_t N, class S>
struct Numbered : S {
  using S::S;
};

template <int W, int kFirst, bool kAccumulates, class Fn, class R, class... A, std::size_t... N>
void run_lanes(Wave& w, const Instruction& i, R (Fn::*)(A...) const, std::index_sequence<N...>) {
  struct Sources : Numbered<N, Source<W, A>>... {
    Sources(const Wave& wave, const Instruction& at)
        : Numbered<N, Source<W, A>>(
              wave, at,
              kAccumulates && N + 1 == sizeof...(A) ? 0 : kFirst + static_cast<int>(N))... {}
  };
  const Sources sources(w, i);
  alignas(64) R r[W];
  const Fn f{};
  for (int l = 0; l < W; ++l)
    r[l] = f(static_cast<const Numbered<N, Source<W, A>>&>(sources)[l]...);
  store_result<W>(w, i, r);
}

template <class Fn>
struct Arity;
template <class Fn, class R, class... A>
struct Arity<R (Fn::*)(A...) const> {
  using Indices = std::index_sequence_for<A...>;
  static constexpr bool kHalves = (std::is_same_v<A, Half> || ...);
  // A bit for each operand of 16 bits.
  template <int kFirst>
  static constexpr uint8_t halves() {
    unsigned bits = sizeof(R) == 2 ? 1 : 0;
    int at = kFirst;
    ((bits |= sizeof(A) == 2 ? 1U << at : 0, ++at), ...);
    return static_cast<uint8_t>(bits);
  }
};

template <int W, int kFirst, bool kAccumulates, class Fn>
void lane_handler(Wave& w, const Instruction& i) {
  run_lanes<W, kFirst, kAccumulates>(w, i, &Fn::operator(),
                                     typename Arity<decltype(&Fn::operator())>::Indices{});
}

}  // namespace fulmen::gpu::isa

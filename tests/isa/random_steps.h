// Random instructions, as a line of assembly and as the manual's table computes them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "isa/manual.h"

namespace fulmen::testing {

// v0 to v15 and s0 to s15 are operands; masks lie in s16 to s23.
constexpr int kOperands = 16, kMasks = 16, kScalars = 24;

// A wave's state on the table's side.
struct State {
  int lanes = 32;
  std::vector<std::vector<uint32_t>> vectors =
      std::vector<std::vector<uint32_t>>(kOperands, std::vector<uint32_t>(64));
  std::vector<uint32_t> scalars = std::vector<uint32_t>(kScalars);
  bool scc = false;
  uint64_t exec = 0;
};

struct Operand {
  enum class Where : uint8_t { vector, scalar, constant } where = Where::constant;
  int index = 0;
  uint64_t value = 0;
  bool negate = false, absolute = false;
  std::string text;
};

// DPP: the lane that a lane reads, or -1.
struct Exchange {
  std::string text;
  std::function<int(int)> from;
};

struct Step {
  std::string text;
  std::function<void(State&)> apply;
  int result = -1;  // the vector register that it writes
  char type = 0;    // of it
  bool approximate = false;
};

inline int words_of(char type) { return type == 'q' || type == 'C' ? 2 : 1; }
inline std::string registers(char kind, int first, int count) {
  const std::string letter(1, kind);
  if (count == 1) return letter + std::to_string(first);
  return letter + "[" + std::to_string(first) + ":" + std::to_string(first + count - 1) + "]";
}

inline uint64_t read(const State& s, const Operand& o, char type, int lane) {
  const auto at = static_cast<std::size_t>(o.index);
  const bool two = words_of(type) == 2;
  if (type == 'm') return (s.scalars[at + static_cast<std::size_t>(lane / 32)] >> (lane % 32)) & 1U;
  uint64_t x = o.value;
  if (o.where == Operand::Where::vector) {
    const auto l = static_cast<std::size_t>(lane);
    x = s.vectors[at][l] | (two ? uint64_t{s.vectors[at + 1][l]} << 32U : 0);
  } else if (o.where == Operand::Where::scalar) {
    x = s.scalars[at] | (two ? uint64_t{s.scalars[at + 1]} << 32U : 0);
  }
  if (!two) x &= 0xFFFFFFFFU;
  const uint64_t sign = type == 'h' ? 0x8000U : 0x80000000U;
  if (o.absolute) x &= ~sign;
  if (o.negate) x ^= sign;
  return type == 'h' || type == 'w' ? x & 0xFFFFU : x;
}

class Generator {
 public:
  Generator(manual::Family family, std::mt19937_64& random)
      : family_(family), lanes_(is_gfx9() ? 64 : 32), random_(random) {}

  Step vector_step(const manual::VectorRow& row) {
    const std::string types = row.types;
    const int words = words_of(types[0]);
    const bool to_mask = types[0] == 'm', carries = types[0] == 'c' || types[0] == 'C';
    const int to = below(kOperands / words) * words, mask = kMasks + below(2) * 2;
    std::vector<Operand> sources;
    bool scalar_used = types.find('m', 1) != std::string::npos;
    for (std::size_t n = 1; n < types.size(); ++n) {
      if (types[n] != 'd') sources.push_back(source(types[n], scalar_used));
    }
    const std::string mask_text = registers('s', mask, lanes_ / 32);
    // Packed operations have one encoding.
    const bool packed = name(row.name).starts_with("v_dot2_");
    std::string text = name(row.name) + (packed ? " " : "_e64 ") +
                       (to_mask ? mask_text : registers('v', to, words));
    if (carries) text += ", " + mask_text;
    for (const Operand& o : sources) text += ", " + o.text;
    const bool clamp = types[0] == 'f' && below(8) == 0;
    if (clamp) text += " clamp";
    return finish(row, text, sources, to, mask, clamp, {});
  }

  // The first source from another lane. fetch: lanes that are off may be read.
  Step exchange_step(const manual::VectorRow& row, const Exchange& exchange, bool fetch) {
    const std::string types = row.types;
    const int to = below(kOperands);
    std::vector<Operand> sources;
    std::string text = name(row.name) + "_dpp " + registers('v', to, 1);
    for (std::size_t n = 1; n < types.size(); ++n) {
      Operand o = at(Operand::Where::vector, below(kOperands));
      if (o.index == to) o.index = (to + 1) % kOperands;
      if (types[n] == 'd') continue;
      text += ", " + registers('v', o.index, 1);
      sources.push_back(o);
    }
    text += " " + exchange.text;
    if (exchange.text.find("dpp8") == std::string::npos) text += " row_mask:0xf bank_mask:0xf";
    if (fetch) text += " fi:1";
    return finish(row, text, sources, to, 0, false, exchange.from);
  }

  Step scalar_step(const manual::ScalarRow& row) {
    const std::string types = row.types;
    const bool writes = types[0] != '-';
    const int words = writes ? words_of(types[0]) : 1, to = below(kOperands / words) * words;
    std::string text = name(row.name) + " ";
    if (writes) text += registers('s', to, words);
    std::vector<Operand> sources;
    for (std::size_t n = 1; n < types.size(); ++n) {
      sources.push_back(scalar_source(types[n]));
      text += (n > 1 || writes ? ", " : "") + sources.back().text;
    }
    return {text, [=, compute = row.compute](State& s) {
              const auto value = [&](std::size_t n) {
                return n < sources.size() ? read(s, sources[n], types[n + 1], 0) : 0;
              };
              const uint64_t result = compute(value(0), value(1), s.scc);
              for (int word = 0; writes && word < words; ++word) {
                s.scalars[static_cast<std::size_t>(to + word)] =
                    static_cast<uint32_t>(result >> (32 * word));
              }
            }};
  }

  std::vector<Exchange> exchanges() {
    const int n = 1 + below(15);
    const auto in_row = [](int l, int at) { return at < 0 || at > 15 ? -1 : l / 16 * 16 + at; };
    std::vector<Exchange> all{
        {"quad_perm:[3,0,2,1]",
         [](int l) { return l / 4 * 4 + std::array{3, 0, 2, 1}[static_cast<std::size_t>(l % 4)]; }},
        {"row_shl:" + std::to_string(n), [=](int l) { return in_row(l, l % 16 + n); }},
        {"row_shr:" + std::to_string(n), [=](int l) { return in_row(l, l % 16 - n); }},
        {"row_ror:" + std::to_string(n), [=](int l) { return in_row(l, (l + 16 - n) % 16); }},
        {"row_mirror", [=](int l) { return in_row(l, 15 - l % 16); }},
        {"row_half_mirror", [=](int l) { return in_row(l, l % 16 / 8 * 8 + 7 - l % 8); }}};
    if (is_gfx9()) {
      // A row gives its last lane to the next row, lane 31 goes to the upper half, the wave moves.
      all.push_back({"row_bcast:15", [](int l) { return l / 16 * 16 - 1; }});
      all.push_back({"row_bcast:31", [](int l) { return l < 32 ? -1 : 31; }});
      all.push_back({"wave_shl:1", [](int l) { return l == 63 ? -1 : l + 1; }});
      all.push_back({"wave_rol:1", [](int l) { return l == 63 ? 0 : l + 1; }});
      all.push_back({"wave_shr:1", [](int l) { return l - 1; }});
      all.push_back({"wave_ror:1", [](int l) { return l == 0 ? 63 : l - 1; }});
    }
    if (family_ == manual::Family::gfx906) return all;
    if (family_ == manual::Family::gfx9) {
      all.push_back({"row_newbcast:" + std::to_string(n), [=](int l) { return in_row(l, n); }});
    } else {
      all.push_back({"row_share:" + std::to_string(n), [=](int l) { return in_row(l, n); }});
      all.push_back(
          {"row_xmask:" + std::to_string(n), [=](int l) { return in_row(l, l % 16 ^ n); }});
      all.push_back({"dpp8:[7,6,1,0,5,4,3,2]", [](int l) {
                       return l / 8 * 8 +
                              std::array{7, 6, 1, 0, 5, 4, 3, 2}[static_cast<std::size_t>(l % 8)];
                     }});
    }
    return all;
  }

  std::string name(const manual::Names& names) const { return manual::name_of(names, family_); }
  bool is_gfx9() const {
    return family_ == manual::Family::gfx9 || family_ == manual::Family::gfx906;
  }
  int below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }

 private:
  Step finish(const manual::VectorRow& row, const std::string& text,
              const std::vector<Operand>& sources, int to, int mask, bool clamp,
              const std::function<int(int)>& from) {
    const std::string types = row.types;
    const bool zeroes_high = is_gfx9();
    Step step{text, {}, types[0] == 'm' ? -1 : to, types[0], row.approximate};
    step.apply = [=, compute = row.compute](State& s) {
      const State before = s;
      uint64_t bits = 0;
      for (int l = 0; l < s.lanes; ++l) {
        if ((s.exec >> l & 1U) == 0) continue;
        const int other = from ? from(l) : l;
        if (other < 0) continue;  // outside of the row: not written
        std::array<uint64_t, 3> x{};
        for (std::size_t n = 0; n < sources.size(); ++n)
          x[n] = read(before, sources[n], types[n + 1], n == 0 ? other : l);
        auto& low = s.vectors[static_cast<std::size_t>(to)][static_cast<std::size_t>(l)];
        if (types.back() == 'd') x[2] = low;
        const manual::Result r = compute(x[0], x[1], x[2]);
        uint64_t value = r.value;
        if (clamp) {
          const double number = manual::number(value, manual::kSingle);
          value = manual::bits(number > 0 ? std::min(number, 1.0) : 0.0, manual::kSingle);
        }
        const bool bit = types[0] == 'm' ? r.value != 0 : r.carry;
        bits |= uint64_t{bit} << l;
        if (types[0] == 'm') continue;
        const bool half = types[0] == 'h' || types[0] == 'w';
        low = half && !zeroes_high ? (low & 0xFFFF0000U) | static_cast<uint32_t>(value & 0xFFFFU)
                                   : static_cast<uint32_t>(value);
        if (words_of(types[0]) == 2)
          s.vectors[static_cast<std::size_t>(to) + 1][static_cast<std::size_t>(l)] =
              static_cast<uint32_t>(value >> 32U);
      }
      if (types[0] != 'm' && types[0] != 'c' && types[0] != 'C') return;
      for (int word = 0; word < s.lanes / 32; ++word) {
        s.scalars[static_cast<std::size_t>(mask + word)] =
            static_cast<uint32_t>(bits >> (32 * word));
      }
    };
    return step;
  }

  static Operand at(Operand::Where where, int index) {
    Operand o;
    o.where = where;
    o.index = index;
    return o;
  }

  Operand constant(char type) {
    Operand o;
    if ((type == 'f' || type == 'h') && below(2) == 0) {
      constexpr std::array<std::pair<const char*, double>, 5> kNumbers{
          {{"0.5", 0.5}, {"1.0", 1.0}, {"2.0", 2.0}, {"4.0", 4.0}, {"-4.0", -4.0}}};
      const auto& [text, value] = kNumbers[static_cast<std::size_t>(below(5))];
      o.text = text;
      o.value = manual::bits(value, type == 'f' ? manual::kSingle : manual::kHalf);
    } else {
      const int number = below(81) - 16;  // the constants that need no literal
      o.text = std::to_string(number);
      o.value = static_cast<uint64_t>(int64_t{number});
    }
    return o;
  }

  Operand scalar_source(char type) {
    if (below(4) == 0) return constant(type);
    Operand o = at(Operand::Where::scalar, below(kOperands / words_of(type)) * words_of(type));
    o.text = registers('s', o.index, words_of(type));
    return o;
  }

  // One scalar register an instruction: gfx9 reads no more.
  Operand source(char type, bool& scalar_used) {
    Operand o;
    const int pick = below(6);
    if (type == 'm') {
      o = at(Operand::Where::scalar, kMasks + below(2) * 2);
      o.text = registers('s', o.index, lanes_ / 32);
      return o;
    }
    if (pick == 0 && !scalar_used) {
      o = at(Operand::Where::scalar, below(kOperands / words_of(type)) * words_of(type));
      o.text = registers('s', o.index, words_of(type));
      scalar_used = true;
    } else if (pick == 1 && type != 'p') {
      return constant(type);
    } else {
      o = at(Operand::Where::vector, below(kOperands / words_of(type)) * words_of(type));
      o.text = registers('v', o.index, words_of(type));
    }
    if (type == 'f' || type == 'h') {
      o.absolute = below(4) == 0;
      o.negate = below(4) == 0;
      if (o.absolute) o.text = "|" + o.text + "|";
      if (o.negate) o.text = "-" + o.text;
    }
    return o;
  }

  manual::Family family_;
  int lanes_;
  std::mt19937_64& random_;
};

}  // namespace fulmen::testing

// Exchanges between lanes through registers. A lane that is off keeps its last value. Reading it
// without fetch-inactive is an error of the kernel, whatever the hardware gives.
#include <fmt/format.h>

#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

constexpr int kRow = 16;
constexpr int kNoLane = -1;
constexpr int kCdnaWave = 64;  // RDNA moves lanes within rows alone

bool on(uint64_t mask, int lane) { return (mask >> lane & 1U) != 0; }

// Returns the lane that DPP reads for a lane; kNoLane outside of its row.
int dpp_lane(const Dpp& d, int l) {
  const int base = l / kRow * kRow, at = l % kRow;
  switch (d.mode) {
    case Dpp::Mode::quad_perm:
      return l / 4 * 4 + d.lanes[static_cast<std::size_t>(l % 4)];
    case Dpp::Mode::dpp8:
      return l / 8 * 8 + d.lanes[static_cast<std::size_t>(l % 8)];
    case Dpp::Mode::row_shl:
      return at + d.amount < kRow ? l + d.amount : kNoLane;
    case Dpp::Mode::row_shr:
      return at >= d.amount ? l - d.amount : kNoLane;
    case Dpp::Mode::row_ror:
      return base + (at - d.amount + kRow) % kRow;
    case Dpp::Mode::row_mirror:
      return base + kRow - 1 - at;
    case Dpp::Mode::row_half_mirror:
      return l / 8 * 8 + 7 - l % 8;
    case Dpp::Mode::row_share:
    case Dpp::Mode::row_newbcast:
      return base + d.amount;
    case Dpp::Mode::row_xmask:
      return base + (at ^ d.amount);
    case Dpp::Mode::row_bcast:
      return d.amount == 15 ? base - 1 : l >= 32 ? 31 : kNoLane;
    case Dpp::Mode::wave_shl:
      return l + 1 < kCdnaWave ? l + 1 : kNoLane;
    case Dpp::Mode::wave_rol:
      return (l + 1) % kCdnaWave;
    case Dpp::Mode::wave_shr:
      return l - 1;
    case Dpp::Mode::wave_ror:
      return (l - 1 + kCdnaWave) % kCdnaWave;
    default:
      return l;
  }
}

[[noreturn]] void read_inactive(int lane, int from) {
  fail(fmt::format("reads lane {} in lane {}, which is off", from, lane));
}

// Row and bank masks say which lanes are written at all.
bool in_masks(const Dpp& d, int l) {
  return (d.row_mask >> (l / kRow) & 1U) != 0 && (d.bank_mask >> (l % kRow / 4) & 1U) != 0;
}

template <int W, bool kOtherRow>
void permlane16(Wave& w, const Instruction& i) {
  const Source<W, uint32_t> x(w, i, 1);
  const uint64_t select = scalar32(w, i.operand[2]) | uint64_t{scalar32(w, i.operand[3])} << 32U,
                 exec = w.exec();
  const bool fetch_inactive = (i.op_sel & 1U) != 0;
  uint32_t r[W] = {};
  for (int l = 0; l < W; ++l) {
    if (!on(exec, l)) continue;
    const int row_begin = (l / kRow ^ (kOtherRow ? 1 : 0)) * kRow;
    const int from = row_begin + static_cast<int>(select >> (4 * (l % kRow)) & 15U);
    if (!fetch_inactive && !on(exec, from)) read_inactive(l, from);
    r[l] = x[from];
  }
  store_lanes<W>(row<W>(w, i.operand[0].index), r, exec);
}

// ds_swizzle reads a lane of the same four, or of the same 32, by masks of its number's bits.
int swizzled_lane(int64_t how, int l) {
  if ((how & 0x8000) != 0) return l / 4 * 4 + static_cast<int>(how >> (2 * (l % 4)) & 3);
  const int64_t lane = (((l % 32) & how) | how >> 5U) ^ how >> 10U;
  return l / 32 * 32 + static_cast<int>(lane & 31);
}

template <int W>
void swizzle(Wave& w, const Instruction& i) {
  if (i.offset >= 0xC000) fail("exchanges lanes in a way that is not known to the emulator");
  const Source<W, uint32_t> x(w, i, 1);
  uint32_t r[W] = {};
  const uint64_t exec = w.exec();
  for (int l = 0; l < W; ++l) {
    if (!on(exec, l)) continue;
    const int from = swizzled_lane(i.offset, l);
    if (!on(exec, from)) read_inactive(l, from);
    r[l] = x[from];
  }
  store_lanes<W>(row<W>(w, i.operand[0].index), r, exec);
}

template <int W>
void permlane64(Wave& w, const Instruction& i) {
  const Source<W, uint32_t> x(w, i, 1);
  uint32_t r[W];
  for (int l = 0; l < W; ++l) {
    const int from = l ^ (W / 2);
    if (W == 64 && on(w.exec(), l) && !on(w.exec(), from)) read_inactive(l, from);
    r[l] = W == 64 ? x[from] : x[l];
  }
  store_lanes<W>(row<W>(w, i.operand[0].index), r, w.exec());
}

// Exchanges the odd blocks of kLanes lanes of the first register for the even ones of the second.
template <int kLanes>
void permlane_swap(Wave& w, const Instruction& i) {
  const uint64_t exec = w.exec();
  uint32_t *const first = row<64>(w, i.operand[0].index), *const second =
                                                              row<64>(w, i.operand[1].index);
  for (int l = 0; l < 64; ++l) {
    if (l / kLanes % 2 == 0) continue;
    const int other = l - kLanes;
    if (!i.dpp.fetch_inactive && on(exec, l) != on(exec, other))
      on(exec, l) ? read_inactive(l, other) : read_inactive(other, l);
    const uint32_t odd = first[l], even = second[other];
    if (on(exec, l)) first[l] = even;
    if (on(exec, other)) second[other] = odd;
  }
}

template <int W>
void read_first_lane(Wave& w, const Instruction& i) {
  const Operand& o = i.operand[1];
  if (w.exec() == 0) fail("reads the first lane that is on, and none is");
  set_scalar(w, i.operand[0],
             o.source == Operand::Source::vector ? row<W>(w, o.index)[std::countr_zero(w.exec())]
                                                 : scalar32(w, o));
}

// These two do not look at EXEC.
template <int W>
void read_lane(Wave& w, const Instruction& i) {
  set_scalar(w, i.operand[0], row<W>(w, i.operand[1].index)[scalar32(w, i.operand[2]) % W]);
}
template <int W>
void write_lane(Wave& w, const Instruction& i) {
  row<W>(w, i.operand[0].index)[scalar32(w, i.operand[2]) % W] = scalar32(w, i.operand[1]);
}

// Adds the number of the mask's lower lanes to a number.
template <int W, bool kHigh>
void count_lanes_below(Wave& w, const Instruction& i) {
  const Source<W, uint32_t> mask(w, i, 1), start(w, i, 2);
  alignas(64) uint32_t r[W];
  for (int l = 0; l < W; ++l) {
    const uint64_t below = (uint64_t{1} << l) - 1;
    r[l] = start[l] + static_cast<uint32_t>(std::popcount(
                          mask[l] & static_cast<uint32_t>(kHigh ? below >> 32U : below)));
  }
  store_result<W>(w, i, r);
}

}  // namespace

template <int W>
void read_dpp(const Wave& w, const Instruction& i, const uint32_t* from, uint32_t* to) {
  const uint64_t exec = w.exec();
  for (int l = 0; l < W; ++l) {
    const int other = dpp_lane(i.dpp, l);
    to[l] = 0;
    if (other == kNoLane || !on(exec, l) || !in_masks(i.dpp, l)) continue;
    if (!i.dpp.fetch_inactive && !on(exec, other)) read_inactive(l, other);
    to[l] = from[other];
  }
}
template void read_dpp<32>(const Wave&, const Instruction&, const uint32_t*, uint32_t*);
template void read_dpp<64>(const Wave&, const Instruction&, const uint32_t*, uint32_t*);

template <int W>
uint64_t dpp_written(const Wave& /*w*/, const Instruction& i) {
  uint64_t written = 0;
  for (int l = 0; l < W; ++l) {
    const bool has_source = dpp_lane(i.dpp, l) != kNoLane || i.dpp.bound_ctrl;
    written |= uint64_t{in_masks(i.dpp, l) && has_source} << l;
  }
  return written;
}
template uint64_t dpp_written<32>(const Wave&, const Instruction&);
template uint64_t dpp_written<64>(const Wave&, const Instruction&);

void add_cross_lane_instructions(Table& t) {
  t.add("v_permlane16_b32", {permlane16<32, false>, permlane16<64, false>, Kind::valu, false});
  t.add("v_permlanex16_b32", {permlane16<32, true>, permlane16<64, true>, Kind::valu, false});
  t.add("v_permlane64_b32", {permlane64<32>, permlane64<64>, Kind::valu, false});
  t.add("v_permlane16_swap_b32", {nullptr, permlane_swap<16>, Kind::valu, false});
  t.add("v_permlane32_swap_b32", {nullptr, permlane_swap<32>, Kind::valu, false});
  t.add("ds_swizzle_b32", {swizzle<32>, swizzle<64>, Kind::lds, false});
  t.add("v_readfirstlane_b32", {read_first_lane<32>, read_first_lane<64>, Kind::valu, false});
  t.add("v_readlane_b32", {read_lane<32>, read_lane<64>, Kind::valu, false});
  t.add("v_writelane_b32", {write_lane<32>, write_lane<64>, Kind::valu, false});
  t.add("v_mbcnt_lo_u32_b32",
        {count_lanes_below<32, false>, count_lanes_below<64, false>, Kind::valu, false});
  t.add("v_mbcnt_hi_u32_b32",
        {count_lanes_below<32, true>, count_lanes_below<64, true>, Kind::valu, false});
}

}  // namespace fulmen::gpu::isa

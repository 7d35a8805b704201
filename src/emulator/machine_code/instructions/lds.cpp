// LDS: loads, stores, atomics, and exchanges between lanes through it. Every access must be inside
// the LDS that the kernel asks for.
#include <fmt/format.h>

#include "emulator/machine_code/instructions/lds_place.h"
#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

template <int W, class Call>
void each_lane(const Wave& w, Call call) {
  for (uint64_t left = w.exec(); left != 0; left &= left - 1) call(std::countr_zero(left));
}

template <int W, int kWords>
void load_words(Wave& w, int first, const uint32_t* address, int64_t offset) {
  each_lane<W>(w, [&](int l) {
    uint32_t words[kWords];
    std::memcpy(words, lds_at(w, address[l], offset, sizeof words, "reads", l), sizeof words);
    for (int n = 0; n < kWords; ++n) row<W>(w, first + n)[l] = words[n];
  });
}
template <int W, int kWords>
void store_words(Wave& w, int first, const uint32_t* address, int64_t offset) {
  each_lane<W>(w, [&](int l) {
    uint32_t words[kWords];
    for (int n = 0; n < kWords; ++n) words[n] = row<W>(w, first + n)[l];
    std::memcpy(lds_at(w, address[l], offset, sizeof words, "writes", l), words, sizeof words);
  });
}

template <int W, int kWords>
void load(Wave& w, const Instruction& i) {
  const Source<W, uint32_t> address(w, i, 1);
  uint32_t at[W];  // before registers change
  for (int l = 0; l < W; ++l) at[l] = address[l];
  load_words<W, kWords>(w, i.operand[0].index, at, i.offset);
}
template <int W, int kWords>
void store(Wave& w, const Instruction& i) {
  store_words<W, kWords>(w, i.operand[1].index, row<W>(w, i.operand[0].index), i.offset);
}

// An access at two offsets, counted in elements or in 64 of them.
template <int W, int kWords, int kStride>
void load_two(Wave& w, const Instruction& i) {
  uint32_t at[W];
  std::memcpy(at, row<W>(w, i.operand[1].index), sizeof at);
  load_words<W, kWords>(w, i.operand[0].index, at, i.offset * kStride * 4 * kWords);
  load_words<W, kWords>(w, i.operand[0].index + kWords, at, i.offset1 * kStride * 4 * kWords);
}
template <int W, int kWords, int kStride>
void store_two(Wave& w, const Instruction& i) {
  const uint32_t* const at = row<W>(w, i.operand[0].index);
  store_words<W, kWords>(w, i.operand[1].index, at, i.offset * kStride * 4 * kWords);
  store_words<W, kWords>(w, i.operand[2].index, at, i.offset1 * kStride * 4 * kWords);
}

// T: the type in memory. A load of 16 bits may write half a register: kShift is 0 or 16, the other
// half stays.
template <int W, class T, int kHalf>
void load_part(Wave& w, const Instruction& i) {
  uint32_t at[W];
  std::memcpy(at, row<W>(w, i.operand[1].index), sizeof at);
  uint32_t* const to = row<W>(w, i.operand[0].index);
  each_lane<W>(w, [&](int l) {
    T value;
    std::memcpy(&value, lds_at(w, at[l], i.offset, sizeof value, "reads", l), sizeof value);
    const auto bits = static_cast<uint32_t>(static_cast<int32_t>(value));
    to[l] = kHalf == 0   ? bits
            : kHalf == 1 ? (to[l] & 0xFFFF0000U) | (bits & 0xFFFFU)
                         : (to[l] & 0xFFFFU) | bits << 16U;
  });
}
template <int W, class T, bool kHigh>
void store_part(Wave& w, const Instruction& i) {
  const uint32_t *const at = row<W>(w, i.operand[0].index), *const from =
                                                                row<W>(w, i.operand[1].index);
  each_lane<W>(w, [&](int l) {
    const T value = static_cast<T>(from[l] >> (kHigh ? 16 : 0));
    std::memcpy(lds_at(w, at[l], i.offset, sizeof value, "writes", l), &value, sizeof value);
  });
}

template <int W, class T, bool kReturns, class Fn>
void atomic(Wave& w, const Instruction& i) {
  constexpr std::size_t kAt = kReturns ? 1 : 0;
  uint32_t at[W];
  std::memcpy(at, row<W>(w, i.operand[kAt].index), sizeof at);
  const uint32_t* const data = row<W>(w, i.operand[kAt + 1].index);
  each_lane<W>(w, [&](int l) {
    std::byte* const place = lds_at(w, at[l], i.offset, sizeof(T), "changes", l);
    T old;
    std::memcpy(&old, place, sizeof old);
    const T result = Fn{}(old, std::bit_cast<T>(data[l]));
    std::memcpy(place, &result, sizeof result);
    if constexpr (kReturns) row<W>(w, i.operand[0].index)[l] = std::bit_cast<uint32_t>(old);
  });
}

// 4 elements of 16 bits a lane, transposed in blocks of 16 lanes: element r of lane i is element
// i % 4 of what lane 4 r + i / 4 of the block reads.
template <int W>
void load_transposed(Wave& w, const Instruction& i) {
  if (!w.all_on()) fail("transposes what lanes read where lanes are off");
  const Source<W, uint32_t> address(w, i, 1);
  uint16_t read[W][4];
  for (int l = 0; l < W; ++l)
    std::memcpy(read[l], lds_at(w, address[l], i.offset, sizeof read[l], "reads", l),
                sizeof read[l]);
  for (int l = 0; l < W; ++l) {
    const int first = l / 16 * 16 + l % 16 / 4;
    for (int r = 0; r < 4; r += 2) {
      row<W>(w, i.operand[0].index + r / 2)[l] =
          read[first + 4 * r][l % 4] | uint32_t{read[first + 4 * r + 4][l % 4]} << 16U;
    }
  }
}

// The lane is byte address / 4, modulo the wave's size. A lane that is off would give 0.
template <int W>
void read_lanes(Wave& w, const Instruction& i) {
  const Source<W, uint32_t> address(w, i, 1), data(w, i, 2);
  uint32_t r[W] = {};
  each_lane<W>(w, [&](int l) {
    const int from = static_cast<int>((address[l] + static_cast<uint32_t>(i.offset)) / 4 % W);
    if ((w.exec() >> from & 1U) == 0)
      fail(fmt::format("reads lane {} in lane {}, which is off", from, l));
    r[l] = data[from];
  });
  store_lanes<W>(row<W>(w, i.operand[0].index), r, w.exec());
}

// The other way round: each lane gives its number to a lane. The last one of several wins, and
// lanes that are given nothing get 0.
template <int W>
void write_lanes(Wave& w, const Instruction& i) {
  const Source<W, uint32_t> address(w, i, 1), data(w, i, 2);
  uint32_t r[W] = {};
  each_lane<W>(w,
               [&](int l) { r[(address[l] + static_cast<uint32_t>(i.offset)) / 4 % W] = data[l]; });
  store_lanes<W>(row<W>(w, i.operand[0].index), r, w.exec());
}

template <int kWords>
void add_words(Table& t, const std::string& bits) {
  constexpr Entry kLoad{load<32, kWords>, load<64, kWords>, Kind::lds, false},
      kStore{store<32, kWords>, store<64, kWords>, Kind::lds, false};
  for (const char* name : {"ds_load_b", "ds_read_b"}) t.add(name + bits, kLoad);
  for (const char* name : {"ds_store_b", "ds_write_b"}) t.add(name + bits, kStore);
}
template <int kWords>
void add_pairs(Table& t, const std::string& bits) {
  constexpr Entry kLoad{load_two<32, kWords, 1>, load_two<64, kWords, 1>, Kind::lds, false},
      kStore{store_two<32, kWords, 1>, store_two<64, kWords, 1>, Kind::lds, false},
      kFarLoad{load_two<32, kWords, 64>, load_two<64, kWords, 64>, Kind::lds, false},
      kFarStore{store_two<32, kWords, 64>, store_two<64, kWords, 64>, Kind::lds, false};
  for (const char* name : {"ds_load_2addr_b", "ds_read2_b"}) t.add(name + bits, kLoad);
  for (const char* name : {"ds_store_2addr_b", "ds_write2_b"}) t.add(name + bits, kStore);
  for (const char* name : {"ds_load_2addr_stride64_b", "ds_read2st64_b"})
    t.add(name + bits, kFarLoad);
  for (const char* name : {"ds_store_2addr_stride64_b", "ds_write2st64_b"})
    t.add(name + bits, kFarStore);
}
template <class T, int kHalf = 0>
void add_load_part(Table& t, std::string_view name) {
  t.add(name, {load_part<32, T, kHalf>, load_part<64, T, kHalf>, Kind::lds, false});
}
template <class T, bool kHigh = false>
void add_store_part(Table& t, std::string_view name) {
  t.add(name, {store_part<32, T, kHigh>, store_part<64, T, kHigh>, Kind::lds, false});
}
template <class T, class Fn>
void add_atomic(Table& t, const std::string& name, const std::string& type, Fn /*function*/) {
  t.add(name + "_" + type, {atomic<32, T, false, Fn>, atomic<64, T, false, Fn>, Kind::lds, false});
  t.add(name + "_rtn_" + type,
        {atomic<32, T, true, Fn>, atomic<64, T, true, Fn>, Kind::lds, false});
}

}  // namespace

void add_lds_instructions(Table& t) {
  add_words<1>(t, "32");
  add_words<2>(t, "64");
  add_words<3>(t, "96");
  add_words<4>(t, "128");
  add_pairs<1>(t, "32");
  add_pairs<2>(t, "64");
  add_load_part<uint8_t>(t, "ds_load_u8");
  add_load_part<uint8_t>(t, "ds_read_u8");
  add_load_part<int8_t>(t, "ds_load_i8");
  add_load_part<int8_t>(t, "ds_read_i8");
  add_load_part<uint16_t>(t, "ds_load_u16");
  add_load_part<uint16_t>(t, "ds_read_u16");
  add_load_part<uint16_t, 1>(t, "ds_load_u16_d16");
  add_load_part<uint16_t, 1>(t, "ds_read_u16_d16");
  add_load_part<uint16_t, 2>(t, "ds_load_u16_d16_hi");
  add_load_part<uint16_t, 2>(t, "ds_read_u16_d16_hi");
  add_store_part<uint8_t>(t, "ds_store_b8");
  add_store_part<uint8_t>(t, "ds_write_b8");
  add_store_part<uint16_t>(t, "ds_store_b16");
  add_store_part<uint16_t>(t, "ds_write_b16");
  add_store_part<uint16_t, true>(t, "ds_store_b16_d16_hi");
  add_store_part<uint16_t, true>(t, "ds_write_b16_d16_hi");
  add_atomic<float>(t, "ds_add", "f32", [](float a, float b) { return a + b; });
  add_atomic<uint32_t>(t, "ds_add", "u32", [](uint32_t a, uint32_t b) { return a + b; });
  add_atomic<uint32_t>(t, "ds_max", "u32", [](uint32_t a, uint32_t b) { return a > b ? a : b; });
  add_atomic<int32_t>(t, "ds_max", "i32", [](int32_t a, int32_t b) { return a > b ? a : b; });
  add_atomic<uint32_t>(t, "ds_or", "b32", [](uint32_t a, uint32_t b) { return a | b; });
  t.add("ds_read_b64_tr_b16", {nullptr, load_transposed<64>, Kind::lds, false});
  t.add("ds_permute_b32", {write_lanes<32>, write_lanes<64>, Kind::lds, false});
  t.add("ds_bpermute_b32", {read_lanes<32>, read_lanes<64>, Kind::lds, false});
}

}  // namespace fulmen::gpu::isa

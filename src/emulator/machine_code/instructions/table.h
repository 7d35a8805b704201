// The instructions that the emulator knows, by name without "_e32" and "_e64".
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "emulator/machine_code/instructions/lanes.h"

namespace fulmen::gpu::isa {

struct Entry {
  Handler wave32 = nullptr, wave64 = nullptr;
  Kind kind = Kind::none;
  bool half_constants = false;  // "1.0" among its operands is the fp16 number
  uint8_t halves = 0;           // a bit an operand: those of 16 bits, which may name a half
};

class Table {
 public:
  void add(std::string_view name, Entry entry) { entries_[std::string(name)] = entry; }
  // One handler for both wave sizes.
  void add(std::string_view name, Kind kind, Handler handler) {
    add(name, {handler, handler, kind, false});
  }
  // A function of a lane's operands, a lambda without captures: its types say how registers are
  // read.
  template <int kFirst = 1, bool kAccumulates = false, class Fn>
  void lanes(std::string_view name, Fn /*function*/, Kind kind = Kind::valu) {
    add(name,
        {lane_handler<32, kFirst, kAccumulates, Fn>, lane_handler<64, kFirst, kAccumulates, Fn>,
         kind, Arity<decltype(&Fn::operator())>::kHalves,
         Arity<decltype(&Fn::operator())>::template halves<kFirst>()});
  }
  const Entry* find(std::string_view name) const {
    const auto found = entries_.find(std::string(name));
    return found == entries_.end() ? nullptr : &found->second;
  }

 private:
  std::unordered_map<std::string, Entry> entries_;
};

// Each adds the instructions of one file.
void add_float_instructions(Table& table);
void add_division(Table& table);
void add_integer_instructions(Table& table);
void add_lane_masks(Table& table);
void add_comparisons(Table& table);
void add_packed_instructions(Table& table);
void add_cross_lane_instructions(Table& table);
void add_scalar_instructions(Table& table);
void add_scalar_arithmetic(Table& table);
void add_flow_instructions(Table& table);
void add_lds_instructions(Table& table);
void add_memory_instructions(Table& table);
void add_buffer_instructions(Table& table);
void add_atomics(Table& table);
void add_scratch_instructions(Table& table);
void add_flat_instructions(Table& table);
void add_matrix_instructions(Table& table);
void add_half_matrix_instructions(Table& table);
void add_int8_matrix_instructions(Table& table);

const Table& instruction_table();

}  // namespace fulmen::gpu::isa

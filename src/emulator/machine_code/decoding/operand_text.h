// Operands and modifiers as the disassembler writes them.
#pragma once

#include <optional>
#include <string_view>

#include "emulator/machine_code/instruction.h"

namespace fulmen::gpu::isa {

// Parses "v[0:3]", "-|s4|", "sext(v1)", "0x7f", "-1", "1.0", "null", "off". half: "1.0" is the fp16
// number. False: not known.
bool parse_operand(std::string_view text, bool half, Operand& operand);

// Parses "offset:16", "row_shr:1", "op_sel:[0,1]" into the instruction. False: not known.
bool parse_modifier(std::string_view text, Instruction& instruction);

// Returns the text after ds_swizzle's "offset:swizzle(", such as "SWAP,16)", as the instruction's
// number. Nothing: not known.
std::optional<int64_t> parse_swizzle(std::string_view text);

}  // namespace fulmen::gpu::isa

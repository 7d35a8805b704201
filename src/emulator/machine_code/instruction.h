// Machine code of an AMD kernel as the emulator of the instruction set runs it: decoded once, then
// executed wave by wave.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/machine_code/counting/memory_access.h"
#include "gpu/compile/amd_rules/operands.h"
#include "gpu/targets/target.h"

namespace fulmen::gpu::isa {

struct Wave;
struct Instruction;

using Handler = void (*)(Wave&, const Instruction&);

// The class by which executed instructions are counted.
enum class Kind : uint8_t {
  matrix,
  valu,
  transcendental,
  salu,
  branch,
  scalar_load,
  lds,
  global,
  scratch,
  barrier,
  wait,
  none
};
constexpr int kKinds = 12;
constexpr std::array<std::string_view, kKinds> kKindNames{
    "matrix", "VALU",   "transcendental", "SALU",    "branch", "scalar load",
    "LDS",    "global", "scratch",        "barrier", "wait",   "none"};

// Registers have the numbers of amd_rules/registers.h. A literal has its 64 bits.
struct Operand {
  // nothing: "null", reads as 0.
  enum class Source : uint8_t { none, vector, scalar, literal, nothing };
  Source source = Source::none;
  bool changed = false;  // a vector register that is not read as it is: a sign, DPP or a part of it
  bool negate = false, absolute = false, sign_extend = false;
  enum class Half : uint8_t { none, low, high };
  Half half = Half::none;    // the half that is named
  int index = 0, count = 0;  // index: vector registers count from 0, accumulators from 256
  uint64_t value = 0;
};

// Data-parallel primitives: the first source comes from another lane.
struct Dpp {
  enum class Mode : uint8_t {
    none,
    quad_perm,
    row_shl,
    row_shr,
    row_ror,
    row_mirror,
    row_half_mirror,
    row_share,
    row_xmask,
    row_newbcast,
    row_bcast,  // a row's last lane to the next row, or lane 31 to the wave's upper half
    wave_shl,
    wave_rol,
    wave_shr,
    wave_ror,
    dpp8
  };
  Mode mode = Mode::none;
  bool fetch_inactive = false, bound_ctrl = false;
  int amount = 0;
  uint8_t row_mask = 0xf, bank_mask = 0xf;
  std::array<uint8_t, 8> lanes{};
};

struct Instruction {
  static constexpr int kMostOperands = 6;
  Handler run = nullptr;
  Kind kind = Kind::none;
  bool accesses_are_checked = true;  // false: waits and branches on SCC
  bool clamp = false, returns = false, offen = false, idxen = false, zeroes_high_half = false;
  uint8_t op_sels = 0;  // how many bits of op_sel are given
  uint8_t op_sel = 0, op_sel_hi = 0, neg_lo = 0, neg_hi = 0;
  // SDWA: 0 to 3 a byte, 4 and 5 a word, 6 all.
  uint8_t source_part[3] = {6, 6, 6}, result_part = 6, unused = 0;
  int operands = 0;
  std::array<Operand, kMostOperands> operand{};
  int64_t offset = 0, offset1 = 0;
  Dpp dpp;
  uint32_t target = 0;   // where a branch leads, or where a pair begins in Program::pairs
  std::size_t line = 0;  // in the program's lines
};

// What an instruction needs for messages, for the check of outstanding loads and for counts.
struct Line {
  AmdInstruction text;
  AmdAccess access;
  bool is_load = false;       // outstanding until a counter says otherwise
  MemoryAccess memory;        // of memory and LDS instructions
  uint64_t matrix_flops = 0;  // of matrix instructions
};

struct Program {
  std::string arch;
  int wave_size = 0;
  LdsReads lds_reads;
  std::string disassembly;  // what the lines' texts are views of
  std::vector<Instruction> code;
  std::vector<Instruction> pairs;  // halves of dual instructions that exchange registers
  std::vector<Line> lines;
  // Fields of the kernel descriptor.
  int vector_registers = 0, accumulators = 0, lds_bytes = 0, kernarg_bytes = 0;
  int scratch_bytes = 0;   // a lane
  int used_registers = 0;  // of a lane, accumulators included, as the metadata says
  uint32_t entry = 0;      // where in the code waves begin
  // Numbers of scalar registers; -1: not asked for.
  int user_scalars = 0, kernarg_at = -1, packet_at = -1;
  std::array<int, 3> workgroup_at{-1, -1, -1};  // the number in each dimension
  bool workgroup_in_trap_registers = false;     // gfx12
  // Words of the arguments that begin in scalar registers.
  int preloaded_at = -1, preloaded_from = 0, preloaded_words = 0;
  bool hand_written = false;       // see CodeObjectOptions
  bool scratch_by_buffer = false;  // it begins with a descriptor of scratch
  bool packed_work_items = true;   // three numbers of a lane in v0
  int work_item_registers = 1;

  bool is(std::string_view family) const { return arch.starts_with(family); }
};

}  // namespace fulmen::gpu::isa

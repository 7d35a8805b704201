#include "emulator/machine_code/counting/memory_access.h"

#include <utility>

#include "gpu/compile/amd_rules/operands.h"
#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu::isa {
namespace {

// The first that the name has decides.
constexpr std::pair<std::string_view, int> kBytes[] = {
    {"dwordx4", 16}, {"dwordx3", 12}, {"dwordx2", 8}, {"dword", 4}, {"b128", 16}, {"b96", 12},
    {"_b64", 8},     {"_u64", 8},     {"_i64", 8},    {"_f64", 8},  {"_x2", 8},   {"short", 2},
    {"ubyte", 1},    {"sbyte", 1},    {"byte", 1},    {"_d16", 2},  {"_u16", 2},  {"_i16", 2},
    {"_b16", 2},     {"_u8", 1},      {"_i8", 1},     {"_b8", 1}};

int bytes_of(std::string_view name) {
  if (has(name, "_d16") &&
      (has(name, "_u8") || has(name, "_i8") || has(name, "_b8") || has(name, "byte")))
    return 1;
  for (const auto& [part, bytes] : kBytes) {
    if (has(name, part)) return bytes;
  }
  return 4;
}

MemoryAccess lds_access_of(std::string_view name) {
  // A pair of halves, transposed or not, is a whole access: ds_read_b64_tr_b16.
  const std::string_view plain = name.substr(0, name.find("_tr_"));
  const bool exchanges = has(name, "permute") || has(name, "swizzle");
  if (exchanges) return {.bytes = 4, .without_conflicts = true};
  MemoryAccess access{.bytes = bytes_of(plain)};
  const bool two = has(name, "2addr") || has(name, "read2") || has(name, "write2");
  if (two) {
    access.addresses = 2;
    access.stride = access.bytes * (has(name, "st64") || has(name, "stride64") ? 64 : 1);
  }
  const bool loads = has(name, "load") || has(name, "read") || has(name, "_rtn");
  access.address_operand = loads ? 1 : 0;
  access.reads = loads && !has(name, "_rtn");
  return access;
}

}  // namespace

MemoryAccess memory_access_of(const AmdInstruction& text) {
  if (text.name.starts_with("ds_")) return lds_access_of(text.name);
  MemoryAccess access{.bytes = bytes_of(text.name), .to_lds = loads_to_lds(text)};
  access.flat = text.name.starts_with("flat_");
  access.address_operand = access.flat && has(text.name, "_load") ? 1 : 0;
  access.reads = access.address_operand == 1;
  return access;
}

}  // namespace fulmen::gpu::isa

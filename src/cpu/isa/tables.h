// The kernels of each instruction set, defined in cpu/isa/tables/<name>.cpp, which alone is
// compiled for that set.
#pragma once

#include "cpu/isa/table.h"

namespace fulmen::cpu {

const IsaTable& table_scalar();
const IsaTable& table_avx2();
const IsaTable& table_avx_vnni();
const IsaTable& table_avx512();
const IsaTable& table_avx512_vnni();
const IsaTable& table_avx512_bf16();
const IsaTable& table_amx();
const IsaTable& table_amx_fp16();
const IsaTable& table_neon();
const IsaTable& table_neon_dotprod();
const IsaTable& table_neon_i8mm();

}  // namespace fulmen::cpu

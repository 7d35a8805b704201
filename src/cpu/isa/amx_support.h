// Whether this process may use AMX.
#pragma once

namespace fulmen::cpu {

// The processor has bf16 tiles and Linux grants their state to the process (asked for once).
bool amx_ready() noexcept;
// The same of fp16 tiles.
bool amx_fp16_ready() noexcept;

}  // namespace fulmen::cpu

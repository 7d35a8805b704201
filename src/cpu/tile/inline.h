#pragma once

// Always inlined: a copy compiled for one instruction set must never be linked into code that runs
// without it.
#define FULMEN_INLINE inline __attribute__((always_inline))

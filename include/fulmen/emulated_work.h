// What kernels do on emulated GPUs, counted in units of the chip's: for models of the time that
// they would take.
#pragma once

#include "fulmen/export.h"

namespace fulmen {

// Work of launches on devices "emulated:<chip>". Vector instructions are not counted: the emulator
// runs source, not instructions. "emulated-isa:<chip>" counts the instructions of AMD's machine
// code (take_executed_instructions() in fulmen/compile.h).
struct EmulatedWork {
  double matrix_flops = 0;  // of matrix instructions, padding and masked scores included
  // Of 128 bytes, with bank conflicts; by lanes and asynchronous copies. What Hopper's products and
  // TMA move is not among them.
  double lds_cycles = 0;
  double global_bytes = 0;  // read and written, whatever cache serves them
  double barriers = 0;      // of whole workgroups
  double exponentials = 0;  // of lanes
  double launches = 0;
};

// Launches add to *work from now on, in the whole process, until this is called with null. Not
// while one runs.
FULMEN_API void count_emulated_work(EmulatedWork* work) noexcept;

}  // namespace fulmen

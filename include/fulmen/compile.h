// GPU kernels ahead of their first use: compiling them without a GPU, what the compiler made of
// them, and the cache on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fulmen/export.h"
#include "fulmen/status.h"

namespace fulmen {

// Instructions of a kernel's inner loop: of the innermost one with matrix instructions the way that
// most tiles take (without masks); a kernel whose matrix instructions are in no loop counts as a
// whole, one without any by its longest loop.
struct LoopCounts {
  int matrix = 0;
  int matrix_products = 0;  // the matrix instructions in units of 16 x 16 x 16
  int vector = 0;           // vector ALU without transcendental ones; a dual one counts once
  int transcendental = 0;   // exp2, log2, reciprocal
  int lds = 0;
  int memory = 0;  // global
  int scalar = 0;
  int total = 0;
};

struct KernelReport {
  std::string arch;    // "gfx1100"
  std::string kernel;  // "forward gfx11 bf16 d128 64x32"
  int workgroup_size = 0;
  // -1: the compiler does not say.
  int registers = -1;      // 32-bit vector registers of a lane, accumulators included
  int accumulators = -1;   // of them accumulators (AMD's CDNA)
  int lds_bytes = 0;       // of a workgroup
  int spills = -1;         // registers spilled (AMD), bytes (NVIDIA)
  int scratch_bytes = -1;  // of a lane
  int occupancy = -1;      // waves a SIMD (AMD) or multiprocessor (NVIDIA) that registers and LDS
                           // leave room for
  std::size_t code_bytes = 0;
  // Hopper: why each matrix product waits for the one before it, in ptxas's words; empty where none
  // does.
  std::string serialised;
  LoopCounts loop;
  std::string loop_missing;  // why there are no counts: a disassembler that is not installed
  // What is wrong with the machine code of an AMD kernel, a sentence each: an instruction that
  // reads lanes of its wave that may be off. Empty where nothing is, and where loop_missing says
  // that it could not be read.
  std::vector<std::string> findings;
};

struct CompileKernelsOptions {
  bool all = false;        // every shipped configuration, else the main ones
  bool pairs = false;      // instead: ordinary problems with every feature, and with every two
  bool common = false;     // instead: what models and engines call most, as prebuilt packages have
  std::string only;        // of these, kernels in whose names all its words are: "prefill d128";
                           // empty: all
  std::string out_folder;  // write prebuilt kernels there, for FULMEN_KERNEL_PATH; empty: only
                           // compile
  // Called after each kernel, by one thread at a time: how many are done, of how many.
  std::function<void(std::size_t done, std::size_t of)> on_kernel{};
};

// Whether kernels can be compiled for a chip ("gfx1100", "sm_90a") here; asks the compiler, and
// compiles no kernel. Errors: no such chip; no compiler for it, with what installs one; a compiler
// that does not know the chip.
FULMEN_API Status check_arch(const std::string& arch);

// Compiles kernels for a chip ("gfx1100", "sm_90a") without a GPU, by NVRTC or an installed clang,
// and says what came out. Errors: no such chip; no compiler for it, with what installs one; a
// kernel that does not compile; no kernel of that name; a folder that cannot be written.
FULMEN_API Result<std::vector<KernelReport>> compile_kernels(
    const std::string& arch, const CompileKernelsOptions& options = {});

// Instructions that a launch on an "emulated-isa" device executed, of all its waves.
struct ExecutedInstructions {
  std::string arch;    // "gfx1100"
  std::string kernel;  // "prefill gfx11 bf16 d128 128x32"
  int64_t workgroups = 0;
  int registers = 0;           // of a lane, accumulators included
  int64_t matrix = 0;          // each a product of 16 x 16 x 16
  int64_t vector = 0;          // vector ALU without transcendental ones; a dual one counts once
  int64_t transcendental = 0;  // exp2, log2, reciprocal
  int64_t scalar = 0;          // scalar ALU and branches
  int64_t scalar_loads = 0;
  int64_t lds = 0;
  int64_t global = 0;  // loads, stores and atomics of memory
  int64_t scratch = 0;
  int64_t waits = 0;  // and barriers
  // What they make the units of a chip do: for models of the time that it takes.
  double matrix_flops = 0;   // of matrix instructions, padding and masked scores included
  double exponentials = 0;   // lanes of transcendental instructions, those that are off included
  double lds_cycles = 0;     // of 128 bytes, with bank conflicts
  double lds_conflicts = 0;  // of them
  double global_bytes = 0;   // of lanes' loads, stores and atomics, whatever cache serves them
};
// Counts of the launches since the last call, in order; only the last 1,000 launches are kept.
FULMEN_API std::vector<ExecutedInstructions> take_executed_instructions();

// Prebuilt kernels of the program's own, for machines without a compiler: looked for after those of
// FULMEN_KERNEL_PATH and before the cache on disk, for the rest of the process. They serve the
// library that they were compiled by: another version's sources may differ, and their kernels are
// then not found. path: a folder that `fulmen compile --out` wrote, or a file that `--pack` wrote.
// Errors: no such folder or file; a file that is no pack. The kernels in a folder are looked at
// when they are wanted.
FULMEN_API Status add_prebuilt_kernels(const std::string& path);
// The same of a pack in memory, which is copied: the bytes of the folder's files one after another.
// Returns how many kernels it has. Errors: bytes that are no kernels, or damaged ones, with where;
// none is taken then.
FULMEN_API Result<int> add_prebuilt_kernels(const void* pack, std::size_t bytes);

// Where prebuilt kernels come from that are read only when one is wanted. It is called from any
// thread, while others that want the same kernel wait, with a chip ("gfx1100") and
// - a kernel's name, whose first word is what it computes ("prefill gfx11 bf16 d128 128x32"), when
//   none of those that were added is that kernel: it may add some by add_prebuilt_kernels(), and
//   returns whether it did;
// - a null name: returns whether there are any for the chip. A device without a compiler is usable
//   then.
using PrebuiltSource = bool (*)(void* context, const char* arch, const char* kernel);
// For the rest of the process; null, the default, is none.
FULMEN_API void set_prebuilt_source(PrebuiltSource source, void* context);

// A compiled kernel on disk.
struct CachedKernel {
  std::string arch, kernel, file;
  std::size_t bytes = 0;
  int64_t last_used = 0;  // seconds since 1970
};
// $FULMEN_CACHE_DIR, else $XDG_CACHE_HOME/fulmen, else ~/.cache/fulmen, on Windows
// %LOCALAPPDATA%/fulmen; empty where none is set: kernels are then kept in memory only.
FULMEN_API std::string kernel_cache_folder();
FULMEN_API std::vector<CachedKernel> cached_kernels();
// Deletes them all; returns how many. Errors: a file that cannot be deleted.
FULMEN_API Result<int> clear_kernel_cache();

// Called when a compilation that takes time begins (done false) and when it ended, from any thread;
// for progress lines. Null is off.
using CompileObserver = void (*)(void* context, const char* kernel, const char* arch, bool done,
                                 double seconds);
FULMEN_API void set_compile_observer(CompileObserver observer, void* context);

// For a program that is about to end, from a thread and not from a signal's handler: kills the
// compilers that run, with all that they started, and waits until their temporary folders are gone.
// No compiler is started afterwards; calls that need one return `unavailable`.
FULMEN_API void end_compilers() noexcept;

}  // namespace fulmen

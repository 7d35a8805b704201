// From a Problem and a tile shape to the constants that a kernel is compiled with, and the arguments that a launch passes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "gpu/chip.h"
#include "gpu/compile/kernel_source.h"
#include "gpu/compile/toolchains/compiler.h"
#include "kernels/core/arguments.h"

namespace fulmen::gpu {

// What src/kernels/core/config.h explains.
struct Specialisation {
  std::string_view entry;          // "forward/prefill.h"
  const Target* target = nullptr;  // none: no matrix instructions
  DType dtype = DType::fp32;
  int head_dim = 0, head_dim_v = 0;  // rounded up
  int block_m = 0, block_n = 0;
  int workgroup = 0;
  int lds_bytes = 0;
  int buffers = 1;
  bool queries_in_lds = false;
  bool persistent = false;
  bool ping_pong = false;
  bool tensor_maps = false;  // its kernel takes TmaForwardArguments
  int dim_groups = 1;
  bool early_loads = false;
  int min_waves = 1;       // AMD: waves a SIMD that registers are to leave room for
  int min_workgroups = 1;  // NVIDIA: workgroups a multiprocessor
  bool whole_rows = false, whole_dims = false, exact_dims = false, whole_bias = false;
  bool whole_tiles = false;                      // one tile of each side, and the sequences fill it
  bool batch_bias = false, batch_dbias = false;  // each batch has a bias, or a gradient of it, of its own
  bool packed_rows = false;
  int bias = -1;  // its DType, or none
  bool keep_mask = false, alibi = false, softcap = false, sinks = false, band = false, plain_scale = false;
  int num_splits = 0;  // more than 1: partial results for forward/decode_combine.h
  bool dropout = false;
  bool variable = false;  // sequences of different lengths
  int page_size = 0;
  bool tiles_in_pages = false;
  bool backward = false;   // its kernel takes BackwardArguments
  int outputs = 0;         // backward: kGivesDq, ...
  int bias_gradient = -1;  // dbias's DType, or none
};

// Which gradients a backward kernel gives.
constexpr int kGivesDq = 1, kGivesDk = 2, kGivesDv = 4, kGivesDbias = 8;

// A kernel beside the products, by whose dtype, dims and tiles it goes: without their target and what only changes scores.
Specialisation helper_kernel(const Specialisation& products, std::string_view entry, int workgroup);

// Fills in what the problem decides: dtype, features, exact_dims, and whole_rows as far as strides say.
void specialise_for(const Problem& problem, Specialisation& s);
// May rows of q, k, v and out (or of the bias) move as 16-byte vectors, by their strides? Pointers are looked at when a plan runs.
bool strides_are_whole(const Problem& problem);
bool bias_is_whole(const Problem& problem);
// Does every tile of block_n keys lie in one page?
bool tiles_in_pages(const Problem& problem, int block_n);

inline int64_t tiles_of(int64_t length, int64_t tile) { return (length + tile - 1) / tile; }
inline int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

std::string prelude(const Specialisation& s);
// "forward gfx11 bf16 d128 64x32 ...": for listings.
std::string to_string(const Specialisation& s);
Result<CompileRequest> compile_request(const Specialisation& s, const Chip& chip, Platform platform);

// Everything but pointers, splits and tiles.
kernels::BackwardArguments arguments_of(const Problem& problem);
void set_pointers(const Problem& problem, const AttentionTensors& tensors, kernels::BackwardArguments& arguments);

}  // namespace fulmen::gpu

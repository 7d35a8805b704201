// What the host knows of a target, a family of matrix instructions that several chips share: how
// operands lie, and every tile shape and limit of its kernels. Data alone: a file of this folder a
// target, which CMake lists (src/CMakeLists.txt). What each family of kernels asks for stands in
// launch/*_tiles.h.
//
// A family whose tiles a target does not have does not run there, and `fulmen explain` says so.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "algorithm/transposed_rows.h"
#include "gpu/launch/backward_atomic_tiles.h"
#include "gpu/launch/backward_fp32_tiles.h"
#include "gpu/launch/backward_tiles.h"
#include "gpu/launch/backward_tma_tiles.h"
#include "gpu/launch/backward_wgmma_atomic_tiles.h"
#include "gpu/launch/backward_wgmma_tiles.h"
#include "gpu/launch/bias_gradient_tiles.h"
#include "gpu/launch/boards_tiles.h"
#include "gpu/launch/decode_latent_tiles.h"
#include "gpu/launch/decode_portable_tiles.h"
#include "gpu/launch/decode_tiles.h"
#include "gpu/launch/decode_tma_tiles.h"
#include "gpu/launch/portable_tiles.h"
#include "gpu/launch/prefill_fp32_tiles.h"
#include "gpu/launch/prefill_tiles.h"
#include "gpu/launch/prefill_tma_tiles.h"
#include "gpu/launch/prefill_wgmma_tiles.h"
#include "gpu/launch/short_backward_tiles.h"
#include "gpu/launch/short_tiles.h"

namespace fulmen::gpu {

enum class Vendor { amd, nvidia };

constexpr int kKiB = 1024;

// How LDS serves a read: so many banks of 4 bytes, and as many lanes at a time as fill them.
struct LdsReads {
  int banks = 32;
  // 16-byte reads of 32 lanes: 0 to 3, 12 to 15 and 20 to 27 at once, then the others.
  bool interleaves = false;
};

// What is known of a chip.
struct ChipFacts {
  std::string_view arch;      // "gfx1100", "sm_90a": what compilers are told
  int wave_size = 32;         // lanes of a wave (warp)
  int lds_bytes = 64 * kKiB;  // most LDS (shared memory) that one workgroup can have
  LdsReads lds_reads = {};
  int vector_registers = 256;      // most 32-bit registers of a lane, accumulators included
  int register_file;               // 32-bit registers of a SIMD (AMD) or multiprocessor (NVIDIA)
  bool multiplies_e4m3 = true;     // by one instruction, where the target has tiles for it
  bool pair_products = false;      // v_dot2_f32_f16: two products of fp16 numbers, added in fp32
  std::string_view products = {};  // "RX 7900": what people call it
};

// What main loops of 128 dims may cost: tests/compile/budget_test.cpp.
struct LoopBudget {
  int vector;     // of prefill: vector instructions for 512 products of 16 x 16 x 16
  int occupancy;  // of prefill: waves a SIMD, at least
  int keys_lds;   // of dk and dv: LDS instructions for 512 products
};

struct Target {
  std::string_view name;            // of kernels/targets/<name>/, and in public names of kernels
  std::optional<Vendor> vendor;     // none: chips of either
  const Target* extends = nullptr;  // whose kernels run on this one's chips, too
  const Target* like = nullptr;     // whose kernels are these but for the instruction itself
  int mma_k = 0;                    // dims that an operand of q.k covers; 0: no matrix instructions
  int value_depth = 16;             // keys of a product of probabilities and values
  bool transposed_values = false;   // V^T in LDS
  bool reads_transposed = false;    // LDS transposes while it is read: values lie as rows
  bool flushes_subnormals = false;  // subnormal operands of products count as 0
  int operand_copies = 1;           // lanes of a wave that hold the same elements of an operand
  int panel_columns = 0;            // of the panels in which operands of warpgroup products lie in
                                    // LDS; 0: there are no such products

  std::optional<DecodeTiles> decode{};
  std::optional<DecodeLatentTiles> decode_latent{};  // without warpgroup products
  std::optional<ShortTiles> short_sequences{};
  std::optional<PrefillTiles> prefill{};
  std::optional<PrefillFp32Tiles> prefill_fp32{};
  std::optional<PrefillWgmmaTiles> prefill_wgmma{};
  std::optional<DecodeTmaTiles> decode_tma{};
  std::optional<PrefillTmaTiles> prefill_tma{};
  std::optional<PrefillTmaTiles> prefill_fp8{};  // products in 8 bits
  std::optional<PrefillTiles> prefill_int8{};    // q k^T in int8
  std::optional<PrefillTiles> prefill_e4m3{};    // both products in fp8, by these tiles
  std::optional<BoardTiles> boards{};
  std::optional<BackwardTiles> backward{};
  std::optional<BiasGradientTiles> bias_gradient{};
  std::optional<BackwardFp32Tiles> backward_fp32{};
  std::optional<BiasGradientTiles> bias_gradient_fp32{};
  std::optional<AtomicTiles> backward_atomic{};
  std::optional<BackwardWgmmaTiles> backward_wgmma{};
  std::optional<BackwardTmaTiles> backward_tma{};
  std::optional<WgmmaAtomicTiles> backward_wgmma_atomic{};
  std::optional<ShortBackwardTiles> short_backward{};
  std::optional<PortableTiles> portable{};
  std::optional<DecodePortableTiles> decode_portable{};

  std::span<const ChipFacts> chips{};  // whose best target this is
  // Chips that tests run on; the first where one is enough.
  std::span<const std::string_view> test_chips{};
  std::optional<LoopBudget> loop_budget{};  // AMD

  bool is_portable() const { return mma_k == 0; }
  // value_depth where values lie transposed, else 0.
  // score_tile: rows and columns of a product.
  int transposed_depth(int score_tile = 16) const {
    return transposed_values ? std::max(value_depth, score_tile) : 0;
  }
  int row_padding() const { return algorithm::row_padding(transposed_depth(), reads_transposed); }
};

// Every target with matrix instructions, in the order of their chips' names.
std::span<const Target* const> targets();

}  // namespace fulmen::gpu

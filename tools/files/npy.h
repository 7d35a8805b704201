// NumPy's .npy files, versions 1 to 3: the little-endian, C-ordered subset that attention needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/status.h"
#include "fulmen/tensor.h"
#include "tools/files/output_file.h"
#include "tools/tensors/memory.h"

namespace fulmen::tools {

struct NpyHeader {
  std::string descr;              // "<f4"
  std::vector<int64_t> shape;     // C order
  std::size_t data_offset = 0;    // bytes of the header
  std::size_t element_bytes = 0;  // as descr says
  std::size_t element_count() const noexcept;
};

// Parses the start of a file; at most kMaxNpyHeader bytes are looked at. Any bytes are safe.
// Errors: not a .npy file, an unknown version or dtype, float64 (with advice), Fortran order, a
// malformed dictionary, a shape whose size overflows.
inline constexpr std::size_t kMaxNpyHeader = std::size_t{1} << 20;
Result<NpyHeader> parse_npy_header(std::span<const std::byte> bytes);

struct NpyArray {
  std::string path;
  DType dtype = DType::fp32;
  std::vector<int64_t> shape;
  Memory data;
  std::size_t element_count() const noexcept;
};

// Reads a whole file or pipe; "-" is the standard input. uint16_is_bf16 says that "<u2" holds bf16
// bits, which NumPy has no name for.
Result<NpyArray> read_npy(const std::string& path, bool uint16_is_bf16);

// Any file or pipe as it is: [bytes] of uint8. Errors: it cannot be read, or there is no memory.
Result<NpyArray> read_bytes(const std::string& path);

// Version 1 header of an array; bf16 is stored as "<u2".
std::string npy_header(DType dtype, std::span<const int64_t> shape);
// Writes header and data; the caller commits.
Status write_npy(OutputFile& file, DType dtype, std::span<const int64_t> shape, const void* data);

// "[2, 64, 12, 32]"
std::string shape_text(std::span<const int64_t> shape);

}  // namespace fulmen::tools

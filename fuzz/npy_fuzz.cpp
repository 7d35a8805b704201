// Any bytes given as a .npy header are either parsed into a consistent description or refused with
// a sentence.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "tools/files/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto header = fulmen::tools::parse_npy_header(std::as_bytes(std::span(data, size)));
  if (!header.ok()) {
    if (header.status().message().empty()) std::abort();
    return 0;
  }
  if (header->data_offset > size || header->element_bytes == 0) std::abort();
  // An accepted header is written back the same.
  const auto dtype = header->descr == "<f4"   ? fulmen::DType::fp32
                     : header->descr == "<f2" ? fulmen::DType::fp16
                     : header->descr == "<u2" ? fulmen::DType::bf16
                                              : fulmen::DType::boolean;
  const std::string again = fulmen::tools::npy_header(dtype, header->shape);
  const auto second = fulmen::tools::parse_npy_header(std::as_bytes(std::span(again)));
  if (!second.ok() || second->shape != header->shape || again.size() % 64 != 0) std::abort();
  return 0;
}

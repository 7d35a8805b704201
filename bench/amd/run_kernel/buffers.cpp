#include "bench/amd/run_kernel/buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "fulmen/printable.h"
#include "tools/files/npy.h"
#include "tools/files/output_file.h"

namespace fulmen::run_kernel {

Result<Buffers> Buffers::make(const std::vector<Buffer>& buffers) {
  Buffers all;
  for (const Buffer& b : buffers) {
    tools::NpyArray file;
    std::size_t bytes = b.bytes;
    if (!b.npy.empty()) {
      Result<tools::NpyArray> read = tools::read_npy(b.npy, true);
      if (!read.ok()) return read.status();
      file = std::move(read).value();
      bytes = file.data.size();
    }
    const Result<void*> memory = all.memory_->allocate(bytes);
    if (!memory.ok()) return memory.status();
    all.places_.push_back({b.name, memory.value(), bytes});
    if (b.npy.empty()) {
      std::memset(memory.value(), b.fill, bytes);
    } else {
      std::memcpy(memory.value(), file.data.data(), bytes);
    }
  }
  return all;
}

Buffers::~Buffers() {
  for (const Place& place : places_) memory_->free(place.data);
}

const Buffers::Place& Buffers::find(const std::string& name) const {
  return *std::find_if(places_.begin(), places_.end(),
                       [&](const Place& place) { return place.name == name; });
}

uint64_t Buffers::address(const std::string& name) const {
  return reinterpret_cast<uint64_t>(find(name).data);
}

Status Buffers::save(const std::vector<Buffer>& buffers) const {
  for (const Buffer& b : buffers) {
    if (b.save.empty()) continue;
    const Place& place = find(b.name);
    auto bytes = static_cast<std::size_t>(size_of(b.dtype));
    bool fits = true;
    for (const int64_t dim : b.shape)
      fits = fits && !__builtin_mul_overflow(bytes, static_cast<std::size_t>(dim), &bytes);
    if (!fits || bytes > place.bytes) {
      return {StatusCode::invalid_argument,
              fmt::format("buffers.{}.shape is {}: the buffer has {} bytes", printable(b.name),
                          tools::shape_text(b.shape), place.bytes)};
    }
    Result<tools::OutputFile> file = tools::OutputFile::create(b.save);
    if (!file.ok()) return file.status();
    if (Status status = tools::write_npy(file.value(), b.dtype, b.shape, place.data); !status.ok())
      return status;
    if (Status status = file->commit(); !status.ok()) return status;
  }
  return {};
}

}  // namespace fulmen::run_kernel

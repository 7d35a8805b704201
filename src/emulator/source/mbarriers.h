// The mbarriers of a workgroup, and copies by Hopper's tensor memory accelerator (TMA). A copy
// arrives when a lane waits for it, and not before.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "emulator/source/lds.h"
#include "emulator/source/workgroup.h"
#include "gpu/driver.h"

namespace fulmen::gpu::emulated {

// What EmulatedDriver::encode_tensor_map() puts into a TensorMap.
struct EmulatedTensorMap {
  const std::byte* data;
  int64_t extent[4];  // columns, rows, heads, batches
  int64_t stride[3];  // bytes, of rows, heads, batches
  int box_rows, box_heads;

  // Where 8 columns from `column` on lie, and how many bytes of them are in the tensor: maybe none.
  struct Piece {
    const std::byte* at;
    std::size_t bytes;
  };
  Piece piece(int64_t column, int64_t row, int64_t head, int64_t batch) const;
};

// Does what the CUDA driver's function does: invalid_argument for what the TMA does not take.
Status encode_tensor_map(const TensorMapShape& shape, kernels::TensorMap& map);

// One box in flight: where its first element lies in the tensor, and where the box goes.
struct TmaCopy {
  int to;  // in LDS
  EmulatedTensorMap map;
  int column;
  int64_t row;
  int head, batch;
  int thread;  // the lane that issued it
  Site site;

  static constexpr int kColumns = 64, kRowBytes = 128, kPieceBytes = 16;
  static constexpr int kPieces = kRowBytes / kPieceBytes, kPieceColumns = 8;
  static constexpr int kAlignment = 1024;  // bytes; swizzled rows need it
  int bytes() const { return map.box_heads * map.box_rows * kRowBytes; }
  // Where a piece of a row lies in a box in LDS.
  static int place(int row, int piece) {
    return row * kRowBytes + (piece ^ row % kPieces) * kPieceBytes;
  }
};

// A copy from LDS to the LDS of another workgroup of the cluster.
struct ClusterCopy {
  int to, from, bytes;
  int thread;
  Site site;
  std::vector<std::byte> content{};  // of the source when the copy was issued
};

class Mbarriers {
 public:
  void reset(int waves);
  // The functions below return an empty string, or what is wrong. at: the barrier's place in LDS.
  std::string init(int at, int arrivals, Site site);
  // The phase ends after its arrivals and bytes; expected: what this arrival adds to the bytes.
  std::string arrive(int at, int expected, int thread, int wave, Lds& lds, Site site);
  std::string load(int at, const TmaCopy& copy, Lds& lds);
  std::string copy(int at, ClusterCopy copy, Lds& lds);
  // Returns true if the phase of this parity has ended. Accesses before its arrivals are then
  // ordered before what the wave does next.
  bool try_wait(int at, int parity, int wave, Lds& lds, const MemoryCheck& accessible,
                std::string& error);
  // Returns why a wait for the barrier does not end.
  std::string missing(int at) const;
  // Checks at the workgroup's end that no copy is in flight.
  std::string end() const;

 private:
  struct Barrier {
    int arrivals = 0, left = 0;
    int bytes = 0;  // still expected
    int phase = 0;  // number of phases that ended
    std::vector<TmaCopy> copies;
    std::vector<ClusterCopy> cluster_copies;
    int arriving() const;             // bytes of both kinds of copies
    std::vector<int> arrived, ended;  // [wave] time of its last arrival: so far; in ended phases
    std::vector<int> waited;          // [wave] the phase that it waited for last
  };
  Barrier* find(int at);
  static std::string deliver(const TmaCopy& copy, Lds& lds, const MemoryCheck& accessible);
  static std::string deliver(const ClusterCopy& copy, Lds& lds);

  std::map<int, Barrier> barriers_;
  int waves_ = 0;
};

}  // namespace fulmen::gpu::emulated

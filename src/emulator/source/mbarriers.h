// The mbarriers of a workgroup, and copies by Hopper's tensor memory accelerator (TMA), which arrive when somebody waits for them
// and not before.
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
  int box_rows;

  // Where 8 columns from `column` on lie, and how many bytes of them are in the tensor: maybe none.
  struct Piece {
    const std::byte* at;
    std::size_t bytes;
  };
  Piece piece(int64_t column, int64_t row, int64_t head, int64_t batch) const;
};

// As the CUDA driver's: invalid_argument for what the TMA does not take.
Status encode_tensor_map(const TensorMapShape& shape, kernels::TensorMap& map);

// One box in flight: where its first element lies in the tensor, and where the box goes.
struct TmaCopy {
  int to;  // in LDS
  EmulatedTensorMap map;
  int column;
  int64_t row;
  int head, batch;
  int thread;  // that asked for it
  Site site;

  static constexpr int kColumns = 64, kRowBytes = 128, kPieceBytes = 16;
  static constexpr int kPieces = kRowBytes / kPieceBytes, kPieceColumns = 8;
  static constexpr int kAlignment = 1024;  // of swizzled rows
  int bytes() const { return map.box_rows * kRowBytes; }
  // Where a piece of a row lies in a box in LDS.
  static int place(int row, int piece) { return row * kRowBytes + (piece ^ row % kPieces) * kPieceBytes; }
};

// From LDS to LDS, of another workgroup of the cluster.
struct ClusterCopy {
  int to, from, bytes;
  int thread;
  Site site;
  std::vector<std::byte> content{};  // of its LDS when it was asked for
};

class Mbarriers {
 public:
  void reset(int waves);
  // All of these: empty, or what is wrong. at: the barrier's place in LDS.
  std::string init(int at, int arrivals, Site site);
  // The phase ends after its arrivals and bytes; expected: what this arrival adds to the bytes.
  std::string arrive(int at, int expected, int thread, int wave, Lds& lds, Site site);
  std::string load(int at, const TmaCopy& copy, Lds& lds);
  std::string copy(int at, ClusterCopy copy, Lds& lds);
  // Returns true if the phase of this parity has ended. What was accessed before its arrivals is then ordered before what the wave
  // does.
  bool try_wait(int at, int parity, int wave, Lds& lds, const MemoryCheck& accessible, std::string& error);
  // Why a wait for it does not end.
  std::string missing(int at) const;
  // At the workgroup's end: no copy is in flight.
  std::string end() const;

 private:
  struct Barrier {
    int arrivals = 0, left = 0;
    int bytes = 0;  // that are still expected
    int phase = 0;  // how many have ended
    std::vector<TmaCopy> copies;
    std::vector<ClusterCopy> cluster_copies;
    int arriving() const;             // bytes of both
    std::vector<int> arrived, ended;  // of each wave, when it arrived last: in this phase, or before
    std::vector<int> waited;          // of each wave: the phase that it waited for last
  };
  Barrier* find(int at);
  static std::string deliver(const TmaCopy& copy, Lds& lds, const MemoryCheck& accessible);
  static std::string deliver(const ClusterCopy& copy, Lds& lds);

  std::map<int, Barrier> barriers_;
  int waves_ = 0;
};

}  // namespace fulmen::gpu::emulated

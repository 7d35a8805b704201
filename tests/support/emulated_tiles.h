// AMX's tile instructions in plain C++, after the operation sections of Intel's manual, so that
// processors without AMX can test the tile kernels. TDPBF16PS reads denormals as zero, TDPFP16PS
// reads them as they are; both flush results. The first and the second products of the pairs have a
// sum each.
#pragma once

#include <cstdint>
#include <cstring>

namespace fulmen::testing {

struct EmulatedTiles {
  struct Tile {
    uint32_t word[16][16];
  };
  struct State {
    int upper_rows = 0;  // of tiles 4 to 7; 0: not configured
    Tile tile[8];
  };

  static void configure(int upper_rows = 16);  // rows of tiles 4 to 7, the others have 16
  static void release();
  template <int kTile>
  static void zero() {
    std::memset(&usable().tile[kTile], 0, sizeof(Tile));
  }
  template <int kTile>
  static void load(const void* p, int64_t stride) {  // words that may begin at any element
    for (int row = 0; row < rows_of(kTile); ++row)
      std::memcpy(usable().tile[kTile].word[row], static_cast<const char*>(p) + row * stride * 4,
                  64);
  }
  template <int kTile>
  static void store(float* p, int64_t stride) {
    for (int row = 0; row < rows_of(kTile); ++row)
      std::memcpy(p + row * stride, usable().tile[kTile].word[row], 64);
  }
  template <int kC, int kA, int kB>
  static void dot() {
    State& state = usable();
    dot(state.tile[kC], state.tile[kA], state.tile[kB], false);
  }

 protected:
  static int rows_of(int tile) { return tile < 4 ? 16 : usable().upper_rows; }
  // The thread's tiles; stops the test where they are not configured, as the processor would.
  static State& usable();
  static void dot(Tile& c, const Tile& a, const Tile& b, bool fp16);
  static void dot_bytes(Tile& c, const Tile& a, const Tile& b);
};

struct EmulatedFp16Tiles : EmulatedTiles {
  template <int kC, int kA, int kB>
  static void dot() {
    State& state = usable();
    EmulatedTiles::dot(state.tile[kC], state.tile[kA], state.tile[kB], true);
  }
};

// TDPBSSD.
struct EmulatedInt8Tiles : EmulatedTiles {
  template <int kC, int kA, int kB>
  static void dot() {
    State& state = usable();
    dot_bytes(state.tile[kC], state.tile[kA], state.tile[kB]);
  }
};

}  // namespace fulmen::testing

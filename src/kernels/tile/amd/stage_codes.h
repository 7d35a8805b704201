// AMD: a tile of transposed values that are codes of 8 bits, and probabilities that become such.
#pragma once

#include "tile/kept_keys.h"
#include "tile/sources.h"
#include "tile/stage_layout.h"

namespace fulmen::kernels {

struct CodeProbabilities {
  Words<2> codes;
};
struct CodeValues {
  Words<2> codes;
};
template <class T>
FULMEN_DEVICE void multiply_output(float (&out)[kElements], const CodeProbabilities& p,
                                   const CodeValues& v) {
  multiply_e4m3(out, v.codes, p.codes);
}

// The operand of the step-th product P V: 8 keys of a lane.
template <int kColumns>
FULMEN_DEVICE CodeProbabilities code_probabilities(const TileRow<kColumns>& p, int step) {
  constexpr int kWordsOfTile = kElements / 4;
  CodeProbabilities operand;
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    const auto& tile = p[step * kValueStepTiles + w / kWordsOfTile];
    const int e = w % kWordsOfTile * 4;
    operand.codes.word[w] = pack_e4m3(tile[e], tile[e + 1], tile[e + 2], tile[e + 3]);
  }
  return operand;
}

// A tile's panel: rows of kBlockN codes, as many as there are dims, one behind the other.
class PanelMemory {
 public:
  FULMEN_DEVICE PanelMemory(const TileRows<true>& rows, int dims)
      : buffer_(reinterpret_cast<const unsigned char*>(rows.head) +
                    rows.first_key / kBlockN * (dims * kBlockN),
                static_cast<unsigned>(dims * kBlockN)) {}
  // 16 codes; zeros of rows past the last one.
  FULMEN_DEVICE Words<4> piece(int n) const {
    return buffer_.load<Words<4> >(16 * static_cast<unsigned>(n), 0);
  }

 private:
  Buffer buffer_;
};

// A panel lies in LDS as in memory, but for the rows' pitch.
class StagedCodes {
 public:
  template <bool kMasked, class Memory>
  FULMEN_DEVICE void fetch(int thread, const Memory& panel, const KeptKeys<kBlockN>& /*kept*/) {
    for_pieces(thread, [&](int n, int piece) { pieces_[n] = panel.piece(piece); });
  }
  FULMEN_DEVICE void publish(int at) const {
#pragma unroll
    for (int n = 0; n < kRounds; ++n) publish_part(at, n);
  }
  FULMEN_DEVICE void publish_part(int at, int round) const {
    for_pieces(thread_id(), [&](int n, int piece) {
      if (n != round) return;
      const int row = 16 * piece / kBlockN, byte = 16 * piece % kBlockN,
                to = at + row * kLayout.value_pitch + byte;
      const auto& word = pieces_[n].word;
      lds_store(to, Words<2>{{word[0], word[1]}});
      lds_store(to + 8, Words<2>{{word[2], word[3]}});
    });
  }
  FULMEN_DEVICE static CodeValues operand(int at, int step, int dims) {
    const int dim = kScoreTile * dims + lane_id() % 16;
    return {lds_load<Words<2> >(at + dim * kLayout.value_pitch + kCodeDepth * step +
                                8 * (lane_id() / 16))};
  }

  static constexpr int kAll = kHeadDimV * kBlockN / 16,
                       kRounds = (kAll + kWorkgroup - 1) / kWorkgroup, kParts = kRounds;

 private:
  template <class Body>
  FULMEN_DEVICE static void for_pieces(int thread, const Body& body) {
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      const int piece = thread + n * kWorkgroup;
      if (kAll % kWorkgroup != 0 && piece >= kAll) break;
      body(n, piece);
    }
  }

  Words<4> pieces_[kRounds];
};

}  // namespace fulmen::kernels

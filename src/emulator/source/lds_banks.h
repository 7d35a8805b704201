// Bank conflicts of LDS, counted by source line. A model: 32 banks of 4 bytes, 128 bytes a cycle.
// An instruction takes its lanes in their order, as many at a time as fill the banks: 32 with 4
// bytes each, 16 with 8, 8 with 16. Those that want different words of one bank wait for each
// other. (AMD's RDNA 3 and CDNA 3 and NVIDIA's documents give banks and width; that lanes are
// taken in order is known of NVIDIA's chips, and assumed of AMD's.) CDNA 4 reads from 64 banks, in
// an order of lanes that was measured (docs/internals/amd_facts.md); its 256 bytes count as two
// cycles.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "emulator/source/lds.h"
#include "gpu/targets/target.h"

namespace fulmen::gpu::emulated {

// A lane's access to LDS.
struct LdsAccess {
  Site site;
  bool write = false;
  int offset = 0;  // in bytes
  int bytes = 0;
};

// What the instructions of a source line cost.
struct LdsLine {
  int64_t instructions = 0;  // wave instructions
  int64_t cycles = 0;        // conflicts included
  int64_t conflicts = 0;     // cycles lost because lanes meet in a bank
};

// The cost of one instruction of a wave, whose lane l accesses `bytes` bytes, a multiple of 4, at
// offsets[l], or kNoAccess. Compilers make several instructions of more than 16 bytes, and of 16
// where an offset is a multiple of 8 only.
constexpr int kNoAccess = -1;
// reads: how the chip serves it; writes have 32 banks everywhere.
LdsLine cost_of(std::span<const int> offsets, int bytes, const LdsReads& reads = {});

class LdsBanks {
 public:
  // The accesses of every lane of a wave from one collective to the next. A line's nth access of
  // each lane is one instruction.
  void count(std::span<const std::vector<LdsAccess>> lanes, const LdsReads& reads);
  // Totals of everything counted until now.
  int64_t conflicts() const;
  int64_t cycles() const;
  // "stage.h:151 writes 16 bytes: 64 instructions, 512 cycles, 0 conflicts", a line each, the most
  // conflicts first.
  std::string report() const;

 private:
  // File, line, write, bytes. The file's name is a copy: the kernel's own goes with it.
  using Line = std::tuple<std::string, int, bool, int>;
  std::map<Line, LdsLine> lines_;
};

// Counts the launches of the emulated GPU while it lives; the newest object counts. It is for
// tests, whose launches come from one thread.
class LdsBankCount {
 public:
  LdsBankCount();
  ~LdsBankCount();
  LdsBankCount(const LdsBankCount&) = delete;
  LdsBankCount& operator=(const LdsBankCount&) = delete;
  const LdsBanks& banks() const noexcept { return banks_; }
  // Null: nothing is counted.
  static LdsBanks* active() noexcept;

 private:
  LdsBanks banks_;
  LdsBankCount* outer_;
};

}  // namespace fulmen::gpu::emulated

// Bank conflicts of LDS, counted by source line (emulator/lds_cost.h).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "emulator/lds_cost.h"
#include "emulator/source/lds.h"

namespace fulmen::gpu::emulated {

// A lane's access to LDS.
struct LdsAccess {
  Site site;
  bool write = false;
  int offset = 0;  // in bytes
  int bytes = 0;
};

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
  std::map<Line, LdsCost> lines_;
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

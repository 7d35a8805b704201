// A plan's score functions as machine code, where that is worth a compilation: what is computed for
// each pair. Bytecode is the same function, and what serves everywhere else.
#pragma once

#include <string>
#include <vector>

#include "cpu/isa/table.h"
#include "cpu/tile/pairs_call.h"
#include "fulmen/problem.h"
#include "runtime/host_code.h"
#include "score/bytecode.h"

namespace fulmen::cpu {

// Who compiles; null: nobody. Before the first plan.
void set_host_code_maker(HostCodeMaker maker) noexcept;

class CompiledFunctions {
 public:
  CompiledFunctions() = default;
  // notes: gets a line about each function of the pass, for explain().
  CompiledFunctions(const Problem& problem, const IsaTable& table, std::vector<std::string>& notes);

  PairsFunction pairs(const score::Bytecode* code) const noexcept {
    return code == score_.bytecode ? score_.pairs : code == mask_.bytecode ? mask_.pairs : nullptr;
  }
  bool any() const noexcept { return score_.pairs != nullptr || mask_.pairs != nullptr; }

 private:
  struct Function {
    const score::Bytecode* bytecode = nullptr;
    HostCode code = {};
    PairsFunction pairs = nullptr;
  };
  static std::string compile(const Problem& problem, const IsaTable& table, const char* name,
                             Function& function);

  Function score_, mask_;
};

}  // namespace fulmen::cpu

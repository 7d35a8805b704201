// The CPU families: what each can do and which problems it takes. choice.h says which of them runs.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cpu/isa/instruction_sets.h"
#include "fulmen/backend.h"

namespace fulmen::cpu {

struct Family {
  const char* name;  // its folder: "prefill" is "cpu.prefill.<instruction set>"
  Pass pass;
  Precision precision;                                              // of its products
  bool dropout, variable_lengths, paged, quantized_kv, out_over_q;  // as in Kernel
  // Of sets that work on vectors: score_functions and block_masks of Kernel.
  bool functions;
  bool (*serves)(const IsaTable& table, int dtype);  // whether the instruction set has it
  Support (*takes)(const Problem& problem);          // limits of all instruction sets
  std::unique_ptr<const Kernel> (*make)(const Family& family, const InstructionSet& isa);
};

// In order of registration: of equal ranks the first runs.
std::span<const Family> families();
// The family of that name; of tests' instruction sets, too.
std::unique_ptr<const Kernel> make_kernel(std::string_view family, const InstructionSet& isa);

// A family on an instruction set. A family's folder adds how it runs: prepare(), and tuning().
class FamilyKernel : public Kernel {
 public:
  FamilyKernel(const Family& family, const InstructionSet& isa);
  std::string_view name() const noexcept final { return name_; }
  Pass pass() const noexcept final { return family_.pass; }
  bool dropout() const noexcept final { return family_.dropout; }
  bool out_over_q() const noexcept final { return family_.out_over_q; }
  bool variable_lengths() const noexcept final { return family_.variable_lengths; }
  bool paged() const noexcept final { return family_.paged; }
  bool quantized_kv() const noexcept final { return family_.quantized_kv; }
  bool takes(Precision precision) const noexcept final { return precision == family_.precision; }
  bool score_functions() const noexcept final {
    return family_.functions && !isa_.table->amx_tiles;
  }
  bool block_masks() const noexcept final { return score_functions(); }
  Support supports(const Problem& problem, const std::string& device) const final;
  double rank(const Problem& problem) const final;

 protected:
  const Family& family_;
  const InstructionSet& isa_;
  const std::string name_;
};

std::unique_ptr<const Kernel> make_prefill_kernel(const Family& family, const InstructionSet& isa);
std::unique_ptr<const Kernel> make_short_kernel(const Family& family, const InstructionSet& isa);
std::unique_ptr<const Kernel> make_decode_kernel(const Family& family, const InstructionSet& isa);
std::unique_ptr<const Kernel> make_backward_kernel(const Family& family, const InstructionSet& isa);

// The limits of short and decode, in the family's kernel.cpp.
Support takes_short(const Problem& problem);
Support takes_decode(const Problem& problem);
// What backward leaves out beside score_mod.
Support takes_backward(const Problem& problem);

}  // namespace fulmen::cpu

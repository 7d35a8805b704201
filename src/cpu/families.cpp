#include "cpu/families.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "cpu/choice.h"
#include "cpu/coded_keys.h"

namespace fulmen::cpu {
namespace {

Support any_problem(const Problem& /*problem*/) { return {}; }

constexpr Family kFamilies[]{
    {.name = "prefill",
     .pass = Pass::forward,
     .precision = Precision::exact,
     .dropout = true,
     .variable_lengths = true,
     .paged = true,
     .quantized_kv = true,
     .out_over_q = true,
     .functions = true,
     .serves = [](const IsaTable& table,
                  int dtype) { return table.prefill_task[dtype] != nullptr; },
     .takes = any_problem,
     .make = make_prefill_kernel},
    {.name = "prefill_int8",
     .pass = Pass::forward,
     .precision = Precision::int8,
     .dropout = true,
     .variable_lengths = true,
     .paged = false,
     .quantized_kv = true,
     .out_over_q = true,
     .functions = true,
     .serves = [](const IsaTable& table,
                  int dtype) { return table.int8.prefill_task[dtype] != nullptr; },
     .takes = codes_fit,
     .make = make_prefill_kernel},
    {.name = "short",
     .pass = Pass::forward,
     .precision = Precision::exact,
     .dropout = false,
     .variable_lengths = true,
     .paged = false,
     .quantized_kv = false,
     .out_over_q = true,
     .functions = false,
     .serves = [](const IsaTable& table, int dtype) { return table.short_task[dtype] != nullptr; },
     .takes = takes_short,
     .make = make_short_kernel},
    {.name = "decode",
     .pass = Pass::forward,
     .precision = Precision::exact,
     .dropout = false,
     .variable_lengths = true,
     .paged = true,
     .quantized_kv = true,
     .out_over_q = true,
     .functions = false,
     .serves = [](const IsaTable& table, int dtype) { return table.decode_task[dtype] != nullptr; },
     .takes = takes_decode,
     .make = make_decode_kernel},
    {.name = "backward",
     .pass = Pass::backward,
     .precision = Precision::exact,
     .dropout = true,
     .variable_lengths = true,
     .paged = false,
     .quantized_kv = false,
     .out_over_q = false,
     .functions = true,
     .serves = [](const IsaTable& table, int dtype) { return table.backward[dtype] != nullptr; },
     .takes = takes_backward,
     .make = make_backward_kernel},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

std::unique_ptr<const Kernel> make_kernel(std::string_view name, const InstructionSet& isa) {
  const Family& family = *std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                       [&](const Family& f) { return f.name == name; });
  return family.make(family, isa);
}

FamilyKernel::FamilyKernel(const Family& family, const InstructionSet& isa)
    : family_(family),
      isa_(isa),
      name_(std::string("cpu.") + family.name + "." + isa.table->name) {}

double FamilyKernel::rank(const Problem& problem) const {
  return cpu::rank(family_.name, isa_, problem);
}

Support FamilyKernel::supports(const Problem& problem, const std::string& /*device*/) const {
  if (Support support = family_.takes(problem); !support.yes) return support;
  if (!family_.serves(*isa_.table, static_cast<int>(problem.dtype))) {
    return Support::no(std::string("not built for dtype ") + to_string(problem.dtype));
  }
  if (problem.quantized_kv() && isa_.table->group[static_cast<int>(problem.dtype)] > 1) {
    return Support::no(
        "its products are of pairs in 16 bits: k and v of another dtype, or with "
        "scales, become fp32");
  }
  return isa_.available ? Support{}
                        : Support::no("this processor lacks " + std::string(isa_.missing));
}

}  // namespace fulmen::cpu

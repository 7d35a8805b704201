#include "cpu/backward/steps.h"
#include "cpu/decode/combine.h"
#include "cpu/decode/vector.h"
#include "cpu/isa/tables.h"
#include "cpu/prefill/vector.h"
#include "cpu/short/vector.h"
#include "support/emulated_pairs.h"

namespace fulmen::testing {
using cpu::Bf16;

const cpu::IsaTable& emulated_pairs_table() {
  static constexpr cpu::IsaTable kTable{
      .name = "pairs_emulated",
      .lanes = EmulatedPairs::kLanes,
      .group = {1, 1, 2},
      .prefill_task = {nullptr, nullptr, cpu::prefill_task<EmulatedPairs, Bf16>},
      .short_task = {nullptr, nullptr, cpu::short_task<EmulatedPairs, Bf16>},
      .decode_task = {nullptr, nullptr, cpu::decode_task<EmulatedPairs, Bf16>},
      .decode_combine = {nullptr, nullptr, cpu::decode_combine<EmulatedPairs, Bf16>},
      .backward = {nullptr, nullptr, cpu::backward_step<EmulatedPairs, Bf16>}};
  return kTable;
}

}  // namespace fulmen::testing

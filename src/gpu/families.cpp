#include <algorithm>

#include "gpu/launch/family.h"

namespace fulmen::gpu {

const std::vector<const Family*>& families() {
  static const auto* const kFamilies = [] {
    auto* list = new std::vector<const Family*>;
    for (const auto& more :
         {decode_families(), short_families(), prefill_families(), short_backward_families(), backward_families()}) {
      list->insert(list->end(), more.begin(), more.end());
    }
    list->push_back(prefill_wgmma_family());
    list->push_back(boards_family());
    list->push_back(backward_atomic_family());
    list->push_back(backward_wgmma_atomic_family());
    list->push_back(backward_wgmma_family());
    list->push_back(prefill_portable_family());
    list->push_back(backward_portable_family());
    return list;
  }();
  return *kFamilies;
}

Support takes_matrix_instructions(const Problem& p) {
  if (p.dtype != DType::fp32) return {};
  return Support::no("matrix instructions multiply fp16 and bf16; fp32 runs without");
}

int64_t query_tile_workgroups(const Problem& p, const Specialisation& s) {
  return tiles_of(p.seqlen_q, s.block_m) * p.batch * p.num_heads;
}
LaunchPlan query_tile_plan(const Problem& p, const Specialisation& s) {
  LaunchPlan plan;
  plan.launches.push_back({s, query_tile_workgroups(p, s)});
  plan.arguments = arguments_of(p);
  plan.arguments.row_tiles = static_cast<int>(tiles_of(p.seqlen_q, s.block_m));
  return plan;
}

Support grid_fits(int64_t workgroups) {
  constexpr int64_t kMost = 2147483647;
  if (workgroups <= kMost) return {};
  return Support::no("it needs " + std::to_string(workgroups) + " workgroups, a launch takes " + std::to_string(kMost));
}

Support lds_fits(int64_t bytes, const Chip& chip) {
  if (bytes <= chip.lds_bytes) return {};
  return Support::no(std::to_string(bytes) + " bytes of LDS are needed, " + std::string(chip.arch) + " has " +
                     std::to_string(chip.lds_bytes));
}

Support registers_fit(int64_t accumulators, const Chip& chip, int waves, int min_waves, int min_workgroups) {
  const int64_t lanes = int64_t{chip.wave_size} * (chip.vendor == Vendor::amd ? min_waves : waves * min_workgroups);
  const int64_t registers = std::min<int64_t>(chip.vector_registers, chip.register_file / lanes);
  // What is left are addresses and operands: the shapes that are known to be good take no less.
  const int64_t most = registers * 7 / 8;
  if (accumulators <= most) return {};
  return Support::no(std::to_string(accumulators) + " registers of a lane are needed for scores and outputs, there are " +
                     std::to_string(most) + " for them");
}

}  // namespace fulmen::gpu

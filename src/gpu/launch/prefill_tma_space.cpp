#include "gpu/launch/prefill_tma_space.h"

#include <string>
#include <utility>

#include "kernels/tile/nvidia/register_shares.h"

namespace fulmen::gpu {

void set_shape(const PrefillTmaShape& shape, TileScheduler scheduler, Specialisation& s) {
  s.block_m = kWarpgroupRows * shape.warpgroups;
  s.block_n = shape.block_n;
  s.workgroup = kWarpgroupLanes * (shape.warpgroups + 1);  // one more, of loaders
  s.buffers = shape.buffers;
  s.queries_in_lds = true;
  s.min_workgroups = shape.min_workgroups;
  s.ping_pong = shape.ping_pong && shape.warpgroups > 1;
  s.persistent = static_cast<int>(scheduler);
  s.tensor_maps = true;
}

std::vector<tuning::ParameterRange> parameters_of(const PrefillTmaChoice& usual,
                                                  PrefillTmaOptions options) {
  const PrefillTmaShape& shape = usual.shape;
  std::vector<int> block_m;
  for (int n = 1; n <= options.most_warpgroups; ++n) block_m.push_back(kWarpgroupRows * n);
  return {{"block_m", kWarpgroupRows * shape.warpgroups, std::move(block_m)},
          {"block_n", shape.block_n, std::move(options.block_n)},
          {"buffers", shape.buffers, std::move(options.buffers)},
          {"min_workgroups", shape.min_workgroups, std::move(options.min_workgroups)},
          {"ping_pong", shape.ping_pong ? 1 : 0, {0, 1}},
          {"persistent", static_cast<int>(usual.scheduler), {0, 1, 2}},
          {"splits_last", usual.last.splits > 1 ? 1 : 0, {0, 1}}};
}

PrefillTmaShape shape_of_values(std::span<const int> v) {
  return {v[0] / kWarpgroupRows, v[1], v[2], v[3], v[4] != 0};
}
TileScheduler scheduler_of_values(std::span<const int> v) {
  return static_cast<TileScheduler>(v[5]);
}
bool splits_last(std::span<const int> v) { return v[6] != 0; }

PrefillTmaChoice choice_of_values(const Problem& p, std::span<const int> v, int compute_units) {
  const PrefillTmaShape shape = shape_of_values(v);
  return {shape, scheduler_of_values(v),
          splits_last(v) ? tail_wave(p, shape, slots_of(shape, compute_units)) : TailWave{}};
}

Support takes_splits(const Problem& p, std::span<const int> v, int compute_units) {
  if (splits_last(v) && choice_of_values(p, v, compute_units).last.splits == 1)
    return Support::no("the tail wave of tiles is not worth splitting");
  return {};
}

Support tiles_fit(const PrefillTmaShape& shape, const Specialisation& s, const Chip& chip,
                  int operand_registers) {
  if (Support support = lds_fits(int64_t{s.lds_bytes} * s.min_workgroups, chip); !support.yes)
    return support;
  if (shape.warpgroups == 1 && s.min_workgroups == 1)
    return Support::no("one warpgroup alone has no use for all registers");
  if (shape.warpgroups == 1 && shape.ping_pong)
    return Support::no("one warpgroup has none to take turns with");
  const int had =
      kernels::RegisterShares::of(shape.warpgroups, s.min_workgroups, kernels::kTmaRegisters)
          .consumer;
  const int needed = s.head_dim_v / 2 + s.block_n / 2 + operand_registers;
  if (needed <= had) return {};
  return Support::no(std::to_string(needed) + " registers of a lane are needed, a share is " +
                     std::to_string(had));
}

}  // namespace fulmen::gpu

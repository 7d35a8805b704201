// kernels/forward/prefill_e4m3.h: prefill.h's tiles, with both products in fp8.
#include "gpu/launch/prefill_codes.h"
#include "kernels/tile/fp8_workspace.h"

namespace fulmen::gpu {
namespace {

class PrefillE4m3 final : public PrefillCodes {
 public:
  explicit PrefillE4m3(const Target& target)
      : PrefillCodes(target, *target.prefill_e4m3, Precision::fp8, "forward/prefill_e4m3.h") {}
  std::string_view name() const noexcept override { return "prefill_e4m3"; }

 private:
  LaunchPlan with_codes(const Problem& p, const Specialisation& s) const override {
    constexpr int kLanes = 256, kWaveBytes = 4;
    LaunchPlan plan = query_tile_plan(p, s);
    const auto w =
        kernels::Fp8Workspace::of(p.batch, p.num_heads, p.num_kv_heads, p.seqlen_q, p.seqlen_k,
                                  s.head_dim, static_cast<int>(p.head_dim_v), s.block_n);
    plan.code_floats = w.total / static_cast<int64_t>(sizeof(float));
    const bool empty = plan.launches.front().workgroups == 0;
    const int64_t kv_heads = p.batch * p.num_kv_heads, parts = kv_heads * w.parts,
                  queries = p.batch * p.num_heads * w.query_blocks,
                  keys = kv_heads * tiles_of(p.seqlen_k, kernels::kFp8Queries),
                  panels = kv_heads * w.panels;
    constexpr int kLeastWave = 32, kLdsBytes = kLanes / kLeastWave * kWaveBytes;
    plan.launches.insert(
        plan.launches.begin(),
        {code_launch(s, "forward/fp8_query_codes.h", kLanes, kLdsBytes,
                     empty ? 0 : queries + 2 * parts),
         code_launch(s, "forward/fp8_key_codes.h", kLanes, kLdsBytes, empty ? 0 : keys + panels)});
    return plan;
  }
};

}  // namespace

const Family* make_prefill_e4m3(const Target& target) {
  return target.prefill_e4m3 ? new PrefillE4m3(target) : nullptr;
}

}  // namespace fulmen::gpu

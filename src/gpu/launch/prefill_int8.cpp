// kernels/forward/prefill_int8.h: prefill.h's tiles, with q k^T in int8.
#include "gpu/launch/prefill_codes.h"
#include "kernels/tile/int8_workspace.h"

namespace fulmen::gpu {
namespace {

class PrefillInt8 final : public PrefillCodes {
 public:
  explicit PrefillInt8(const Target& target)
      : PrefillCodes(target, *target.prefill_int8, Precision::int8, "forward/prefill_int8.h") {}
  std::string_view name() const noexcept override { return "prefill_int8"; }

 private:
  LaunchPlan with_codes(const Problem& p, const Specialisation& s) const override {
    constexpr int kLanes = 256;
    LaunchPlan plan = query_tile_plan(p, s);
    const auto w = kernels::Int8Workspace::of(p.batch, p.num_heads, p.num_kv_heads, p.seqlen_q,
                                              p.seqlen_k, s.head_dim);
    plan.code_floats = w.total / static_cast<int64_t>(sizeof(float));
    const bool empty = plan.launches.front().workgroups == 0;
    const int64_t kv_heads = p.batch * p.num_kv_heads,
                  keys = kv_heads * tiles_of(p.seqlen_k, kernels::kCodedRows),
                  queries = p.batch * p.num_heads * tiles_of(p.seqlen_q, kernels::kCodedRows);
    plan.launches.insert(
        plan.launches.begin(),
        {code_launch(s, "forward/int8_key_sums.h", kLanes, kernels::key_sum_bytes(kLanes),
                     empty ? 0 : kv_heads * w.parts),
         code_launch(s, "forward/int8_codes.h", kLanes, kernels::CodeLayout::of(s.head_dim).total,
                     empty ? 0 : keys + queries)});
    return plan;
  }
};

}  // namespace

const Family* make_prefill_int8(const Target& target) {
  return target.prefill_int8 ? new PrefillInt8(target) : nullptr;
}

}  // namespace fulmen::gpu

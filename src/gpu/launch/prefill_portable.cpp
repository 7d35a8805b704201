// kernels/forward/prefill_portable.h: the path without matrix instructions.
#include "gpu/launch/family.h"

namespace fulmen::gpu {
namespace {

constexpr int kBlockM = 64, kBlockN = 64, kChunk = 32, kWorkgroup = 256;

class Portable final : public Family {
 public:
  std::string_view name() const noexcept override { return "prefill"; }
  std::string_view target() const noexcept override { return "portable"; }
  bool dropout() const noexcept override { return true; }
  bool variable_lengths() const noexcept override { return true; }
  Support supports(const Problem& p, const Chip& /*chip*/) const override { return grid_fits(workgroups(p)); }
  double rank(const Problem& /*problem*/) const override { return 10; }
  LaunchPlan plan(const Problem& p, const Chip& /*chip*/, int /*compute_units*/) const override {
    Specialisation s;
    s.entry = "forward/prefill_portable.h";
    s.head_dim = static_cast<int>((p.head_dim + kChunk - 1) / kChunk * kChunk);
    s.head_dim_v = static_cast<int>((p.head_dim_v + kChunk - 1) / kChunk * kChunk);
    s.block_m = kBlockM;
    s.block_n = kBlockN;
    s.workgroup = kWorkgroup;
    // Two chunks, rows one longer than a tile, and the probabilities.
    s.lds_bytes = 4 * ((2 * kChunk + 1) * (kBlockM + 1) + kBlockM * (kBlockN + 1));
    specialise_for(p, s);
    s.whole_rows = s.whole_dims = s.exact_dims = s.whole_bias = s.plain_scale = s.tiles_in_pages =
        false;  // nothing depends on them
    LaunchPlan plan;
    plan.launches.push_back({s, workgroups(p)});
    plan.arguments = arguments_of(p);
    plan.arguments.row_tiles = static_cast<int>((p.seqlen_q + kBlockM - 1) / kBlockM);
    return plan;
  }

 private:
  static int64_t workgroups(const Problem& p) { return (p.seqlen_q + kBlockM - 1) / kBlockM * p.batch * p.num_heads; }
};

}  // namespace

const Family* prefill_portable_family() {
  static const Portable kPortable;
  return &kPortable;
}

}  // namespace fulmen::gpu

// kernels/backward/backward_atomic.h: gradients by one kernel, dq by atomics.
#include <algorithm>

#include "gpu/launch/backward.h"
#include "kernels/backward/backward_layout.h"

namespace fulmen::gpu {
namespace {

class BackwardAtomic final : public AtomicFamily {
 public:
  using AtomicFamily::AtomicFamily;
  std::string_view name() const noexcept override { return "backward_atomic"; }

 private:
  // Outputs of a pair's waves go to LDS where queries were, for which one tile of these may be too
  // few.
  std::vector<int> buffer_counts(const Specialisation& s) const override {
    return s.dim_groups == 2 ? std::vector<int>{2} : std::vector<int>{1, 2};
  }
  int lds_bytes(const Specialisation& s) const override {
    return kernels::AtomicLayout::of({.transposed_depth = target().transposed_depth(),
                                      .reads_transposed = target().reads_transposed,
                                      .head_dim = s.head_dim,
                                      .head_dim_v = s.head_dim_v,
                                      .block_m = s.block_m,
                                      .block_n = s.block_n,
                                      .buffers = s.buffers,
                                      .rows_in_lds = s.queries_in_lds != 0,
                                      .first_values = (s.outputs & kGivesDk) != 0,
                                      .second_values = (s.outputs & kGivesDv) != 0,
                                      .dim_groups = s.dim_groups})
        .total;
  }
  Specialisation specialisation(const Problem& p, const Chip& chip) const override {
    Specialisation s;
    for (AtomicShape shape : target().backward_atomic->shapes) {
      if (std::max(p.head_dim, p.head_dim_v) > shape.max_head_dim) continue;
      // No wave without keys: chess boards have 64. A wave has 16 of them at least.
      if (shape.dim_groups < 4 && p.seqlen_k <= shape.block_m / 2 &&
          (shape.waves > 4 || shape.block_m > 16 * shape.waves)) {
        if (shape.waves > 4) shape.waves /= 2;
        shape.block_m /= 2;
      }
      s = of(p, chip, shape);
      if (s.lds_bytes <= chip.lds_bytes) break;
    }
    return s;
  }
  Specialisation of(const Problem& p, const Chip& chip, const AtomicShape& shape) const {
    // A wave's part of the dims is whole tiles of 16. A pair's waves have one of the two tensors
    // each, of as many dims.
    const int64_t multiple = std::max(target().mma_k, 16 * shape.dim_groups);
    const int64_t least = shape.dim_groups > 1 ? std::max(p.head_dim, p.head_dim_v) : 0;
    Specialisation s;
    s.entry = "backward/backward_atomic.h";
    s.target = &target();
    s.head_dim = static_cast<int>(round_up(std::max(p.head_dim, least), multiple));
    s.head_dim_v = static_cast<int>(round_up(std::max(p.head_dim_v, least), multiple));
    s.block_m = shape.block_m;
    s.block_n = shape.block_n;
    s.workgroup = shape.waves * chip.wave_size;
    s.buffers = shape.buffers;
    s.dim_groups = shape.dim_groups;
    s.queries_in_lds = shape.dim_groups > 1;
    s.min_workgroups = shape.min_workgroups;
    s.outputs = outputs_of(p);
    s.lds_bytes = lds_bytes(s);
    specialise_for(p, s);
    read_mask_as_bits(p, s);
    if (s.dim_groups == 1) store_bias(p, s);
    return s;
  }
};

}  // namespace

const Family* make_backward_atomic(const Target& target) {
  return target.backward_atomic ? new BackwardAtomic(target) : nullptr;
}

}  // namespace fulmen::gpu

// What prefill_int8.cpp and prefill_e4m3.cpp share: prefill.h's tiles over codes of 8 bits, which
// launches before it write.
#pragma once

#include <span>

#include "gpu/launch/prefill_space.h"

namespace fulmen::gpu {

class PrefillCodes : public Family {
 public:
  PrefillCodes(const Target& target, const PrefillTiles& tiles, Precision precision,
               std::string_view entry)
      : Family(target), tiles_(tiles), precision_(precision), entry_(entry) {}
  bool has_products(Precision precision) const noexcept override { return precision == precision_; }
  HeadDims most_head_dims() const noexcept override;
  Support supports(const Problem& p, const Chip& chip) const override;
  LaunchPlan plan(const Problem& p, const Chip& chip, int compute_units) const override;
  tuning::Space space(const Problem& p, const Chip& chip, int compute_units) const override;
  LaunchPlan tuned_plan(const Problem& p, const Chip& chip, int compute_units,
                        std::span<const int> values) const override;

 protected:
  // The products' launch, and before it those that write codes. empty: nothing is computed.
  virtual LaunchPlan with_codes(const Problem& p, const Specialisation& s) const = 0;
  // A launch that writes what the products read.
  static KernelLaunch code_launch(const Specialisation& products, std::string_view entry,
                                  int workgroup, int lds_bytes, int64_t workgroups);

 private:
  Support takes(const Problem& p, const Chip& chip, const PrefillShape& shape) const;
  Specialisation specialisation(const Problem& p, const Chip& chip) const;
  Specialisation specialisation(const Problem& p, const PrefillShape& shape,
                                const Chip& chip) const;
  const PrefillTiles& tiles_;
  const Precision precision_;
  const std::string_view entry_;
};

}  // namespace fulmen::gpu

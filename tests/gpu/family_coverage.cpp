#include "gpu/family_coverage.h"

#include <set>

#include "fulmen/fulmen.h"
#include "gpu/targets/chip.h"
#include "support/run_kernel.h"

namespace fulmen::testing {

std::string idle_families(const std::string& device, const std::vector<Use>& uses,
                          const std::function<CaseSpec(const Use&)>& spec_of, Random& random,
                          const std::function<bool(const gpu::Family&)>& asked) {
  std::set<std::string> served;
  for (const Use& use : uses) {
    Case c(spec_of(use), random);
    c.options.deterministic = use.deterministic;
    for (std::string& kernel : kernels_for(c.problem(), device)) served.insert(std::move(kernel));
  }
  std::string chip_name, storage;
  for (const DeviceInfo& info : devices()) {
    if (info.name == device) chip_name = info.chip;
  }
  gpu::Chip chip{};
  // A real GPU's name has the chip's behind it: "NVIDIA H200 (sm_90a)".
  if (const std::size_t at = chip_name.rfind('('); at != std::string::npos)
    chip_name = chip_name.substr(at + 1, chip_name.size() - at - 2);
  if (!gpu::find_chip(chip_name, storage, chip)) return "no chip is called " + chip_name;
  const Case any(spec_of(uses.front()), random);
  std::string idle;
  for (const gpu::Family* family : gpu::families()) {
    if (!chip.runs(family->target()) || !asked(*family)) continue;
    if (family->serves(any.problem(), chip).reason.starts_with("it has no tile shapes")) continue;
    // Its cases have values in keys: decode_latent_test.cpp.
    if (family->name() == "decode_latent") continue;
    if (family->name() == "prefill_e4m3" && !chip.multiplies_e4m3) continue;
    const std::string kernel = device.substr(0, device.find(':')) + "." +
                               std::string(family->name()) + "." +
                               std::string(family->target().name);
    if (!served.contains(kernel)) idle += (idle.empty() ? "" : ", ") + kernel;
  }
  return idle;
}

}  // namespace fulmen::testing

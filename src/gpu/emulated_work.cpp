// Where launches of emulated GPUs add up what they did.
#include "gpu/emulated_work.h"

#include <atomic>

namespace fulmen {
namespace {

std::atomic<EmulatedWork*> counted{nullptr};

}  // namespace

void count_emulated_work(EmulatedWork* work) noexcept { counted = work; }

EmulatedWork* gpu::counted_work() noexcept { return counted; }

}  // namespace fulmen

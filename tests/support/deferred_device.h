// A device that differs from the host as much as possible without a GPU: the host cannot access its
// memory, and work is executed only when a caller waits for it. Its kernel is one of the CPU's.
#pragma once

namespace fulmen::testing {

// Registers the backend "deferred" with the device "deferred:0", once a process. Alignments and
// sizes are as everywhere, allocations over 256 MiB fail.
void register_deferred_device();
// Allocations that were not freed.
int deferred_allocations();

}  // namespace fulmen::testing

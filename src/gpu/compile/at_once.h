// Compilations beside one another: a compiler runs a second or so for each kernel.
#pragma once

#include <cstddef>
#include <functional>

namespace fulmen::gpu {

// work(0) to work(count - 1), each once, by this thread and as many others as the machine can run.
// Returns when all are done. Where one throws, its thread takes no more of them, and one of what
// was thrown is thrown again here. This thread's compile_time() gets the number of kernels of all,
// and the seconds of the thread that took longest.
void at_once(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace fulmen::gpu

// The processors of a new thread.
#pragma once

#include <pthread.h>

namespace fulmen::platform {

// Those of the process: a thread of the host's that is bound to a processor may start others, which
// would find themselves bound to it, too.
void use_processors_of_the_process(pthread_attr_t& attributes) noexcept;

}  // namespace fulmen::platform

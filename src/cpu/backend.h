// The CPU backend: this machine's processor with every kernel family on every instruction set.
#pragma once

#include <memory>

#include "fulmen/backend.h"
#include "runtime/host_code.h"

namespace fulmen::cpu {

// maker: who compiles score functions; null: nobody.
std::shared_ptr<const Backend> make_cpu_backend(HostCodeMaker maker);

}  // namespace fulmen::cpu

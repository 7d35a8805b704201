// The CPU backend: this machine's processor with every kernel family on every instruction set.
#pragma once

#include <memory>

#include "fulmen/backend.h"

namespace fulmen::cpu {

std::shared_ptr<const Backend> make_cpu_backend();

}  // namespace fulmen::cpu

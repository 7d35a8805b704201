// Names and folders of AMD's libraries on each system.
#pragma once

#include "gpu/libraries/library_search.h"

namespace fulmen::gpu {

LibrarySearch hip_search(System system = platform::kThisSystem);
// Finds no hipRTC of ROCm 5, where it is part of libamdhip64 and Debian's crashes in its compiler
// library. clang serves there.
LibrarySearch hiprtc_search(System system = platform::kThisSystem);
LibrarySearch comgr_search(System system = platform::kThisSystem);

}  // namespace fulmen::gpu

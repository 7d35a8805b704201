// Names and folders of NVIDIA's libraries on each system.
#pragma once

#include "gpu/libraries/library_search.h"

namespace fulmen::gpu {

LibrarySearch cuda_search(System system = platform::kThisSystem);
LibrarySearch nvrtc_search(System system = platform::kThisSystem);
// How the name of the library begins that NVRTC has beside it.
std::string_view nvrtc_beside(System system = platform::kThisSystem);

}  // namespace fulmen::gpu

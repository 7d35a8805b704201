// Names and folders of AMD's libraries on each system.
#pragma once

#include "gpu/libraries/library_search.h"

namespace fulmen::gpu {

// The library runs on Linux. Windows' names and folders are here for a port; tests find fakes by
// them.
enum class System { linux, windows };

LibrarySearch hip_search(System system = System::linux);
// Finds no hipRTC of ROCm 5, where it is part of libamdhip64 and Debian's crashes in its compiler
// library. clang serves there.
LibrarySearch hiprtc_search(System system = System::linux);
LibrarySearch comgr_search(System system = System::linux);

}  // namespace fulmen::gpu

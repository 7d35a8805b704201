// What AMD's libraries are called, and where they lie, on each system.
#pragma once

#include "gpu/drivers/library_search.h"

namespace fulmen::gpu {

// The library itself runs on Linux. Windows' names and folders are kept beside Linux's for who ports it; tests find fakes by them.
enum class System { linux, windows };

LibrarySearch hip_search(System system = System::linux);
// Not of ROCm 5: its hipRTC is part of libamdhip64, and Debian's crashes in its compiler library. clang serves there.
LibrarySearch hiprtc_search(System system = System::linux);
LibrarySearch comgr_search(System system = System::linux);

}  // namespace fulmen::gpu

// Pipes that no other program inherits.
#pragma once

namespace fulmen::platform {

// Opens one; false: errno says why.
bool open_pipe(int (&ends)[2]) noexcept;

}  // namespace fulmen::platform

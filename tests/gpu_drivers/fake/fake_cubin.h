// The code that the fake NVRTC makes and the fake libcuda loads: only the data that a launch is
// checked against.
#pragma once

namespace fulmen::fake {

constexpr char kFakeCubinMagic[8] = {'f', 'a', 'k', 'e', 'c', 'u', 'b', '1'};

struct FakeCubin {
  char magic[8];
  char arch[16];
  char kernel[64];
  unsigned argument_bytes;
};

}  // namespace fulmen::fake

# Cross build for macOS on Apple silicon by zig, which brings clang, the C++ library and the
# system's headers: `pip install ziglang`, and FULMEN_ZIG=<its folder>/zig in the environment.
# Nobody has run what it makes.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(_zig zig)
if(DEFINED ENV{FULMEN_ZIG})
  set(_zig $ENV{FULMEN_ZIG})
endif()
set(CMAKE_C_COMPILER ${_zig};cc)
set(CMAKE_CXX_COMPILER ${_zig};c++)
set(CMAKE_C_COMPILER_TARGET aarch64-macos)
set(CMAKE_CXX_COMPILER_TARGET aarch64-macos)
set(CMAKE_OSX_SYSROOT "" CACHE STRING "zig has the headers")
# zig's command is three words: CMake takes a file of one.
foreach(_tool ar ranlib)
  string(TOUPPER ${_tool} _upper)
  set(_file ${CMAKE_BINARY_DIR}/zig-${_tool})
  file(WRITE ${_file} "#!/bin/sh\nexec ${_zig} ${_tool} \"$@\"\n")
  file(CHMOD ${_file} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  set(CMAKE_${_upper} ${_file} CACHE FILEPATH "")
endforeach()
set(CMAKE_INSTALL_NAME_TOOL llvm-install-name-tool-19 CACHE FILEPATH "")
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)

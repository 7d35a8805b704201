# Cross build for 64-bit Windows 10 or newer: clang 19 with the headers and the C++ library of
# Debian's g++-mingw-w64-x86-64-posix, linked by lld. Programs run under Wine. Not by that g++
# itself: it does not align the stack for AVX registers on Windows (GCC bug 54412).
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER clang-19)
set(CMAKE_CXX_COMPILER clang++-19)
set(CMAKE_C_COMPILER_TARGET x86_64-w64-windows-gnu)
set(CMAKE_CXX_COMPILER_TARGET x86_64-w64-windows-gnu)
set(CMAKE_RC_COMPILER x86_64-w64-mingw32-windres)
set(CMAKE_CROSSCOMPILING_EMULATOR /usr/lib/wine/wine64)
# The library's interfaces of Windows 10. Variables of a thread are as that C++ library has them.
set(_flags "-D_WIN32_WINNT=0x0A00 -DWINVER=0x0A00 -femulated-tls")
set(CMAKE_C_FLAGS_INIT "${_flags}")
set(CMAKE_CXX_FLAGS_INIT "${_flags}")
# A program, or a DLL, needs nothing of that C++ library where it runs.
set(_link "-fuse-ld=lld -static")
set(CMAKE_EXE_LINKER_FLAGS_INIT "${_link}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${_link}")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "${_link}")
set(CMAKE_FIND_ROOT_PATH /usr/x86_64-w64-mingw32)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)

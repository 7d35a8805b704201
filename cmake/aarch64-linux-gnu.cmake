# Cross build for 64-bit Arm with Debian's g++-aarch64-linux-gnu; programs run under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64;-L;/usr/aarch64-linux-gnu")
# g++ 12 for Arm takes the constants of a std::initializer_list argument for uninitialised.
set(CMAKE_CXX_FLAGS_INIT "-Wno-uninitialized -Wno-maybe-uninitialized")

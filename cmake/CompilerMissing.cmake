# Says which packages have a compiler, where there is none: CMake itself asks for
# CMAKE_CXX_COMPILER.
if(NOT CMAKE_CXX_COMPILER AND NOT CMAKE_TOOLCHAIN_FILE AND "$ENV{CXX}" STREQUAL "")
  find_program(compiler NAMES c++ g++ clang++ icpx NO_CACHE)
  if(NOT compiler)
    message(FATAL_ERROR
                        "Fulmen is compiled from C++20, and no C++ compiler was found (c++, g++, clang++ and icpx were looked for). "
                        "Install g++ 12 or newer, or clang 16 or newer:\n"
                        "  Debian, Ubuntu     apt-get install g++\n"
                        "  Fedora, RHEL       dnf install gcc-c++\n"
                        "  openSUSE           zypper install gcc-c++\n"
                        "  Arch               pacman -S gcc\n"
                        "  Alpine             apk add g++ musl-dev\n"
                        "  conda              conda install -c conda-forge cxx-compiler\n"
                        "One of another name is named by the environment: CC=clang-19 CXX=clang++-19")
  endif()
endif()

# Most of the time to compile a file are headers that its neighbours need, too: up to eight of a
# folder are compiled as one, and of the program's whatever their folder, as it has many small ones.
# What a file forgets to include, the stage apart of `./dev test --long` finds.
set(FULMEN_UNITY "all" CACHE
  STRING "Compile the files of a folder together: all, tests (and tools), or empty: none")
set(FULMEN_UNITY_FILES 8)
# The tests of drivers name their drivers' types alike; allocation_count replaces operator new.
set(FULMEN_NEVER_UNITY "/(tests/gpu_drivers/|tests/api/allocation_count)")

if(FULMEN_UNITY STREQUAL "all" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # With so much to inline g++ 12 takes a vector of one element for an array that a second one is
  # beyond.
  target_compile_options(fulmen_options INTERFACE -Wno-array-bounds -Wno-stringop-overflow)
endif()

function(fulmen_unity target) # sources...
  if(NOT (FULMEN_UNITY STREQUAL "all" OR (FULMEN_UNITY STREQUAL "tests" AND NOT target
    MATCHES "^fulmen_(((gpu|emulator|reference)_)?objects|platform)$")))
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(source ${ARGN})
    # Files of an instruction set have compiler flags of their own.
    if(source MATCHES "/tables/" OR source MATCHES "${FULMEN_NEVER_UNITY}")
      continue()
    endif()
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    if(target STREQUAL fulmen_tools AND NOT source MATCHES "/platform/")
      set(folder tools)
    endif()
    string(MAKE_C_IDENTIFIER ${folder} folder)
    math(EXPR part "0${count_${folder}} / ${FULMEN_UNITY_FILES}")
    math(EXPR count_${folder} "0${count_${folder}} + 1")
    set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${folder}_${part})
  endforeach()
endfunction()

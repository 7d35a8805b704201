# Most of the time to compile a file are headers that its neighbours need, too: up to twelve of a
# folder are compiled as one, and whatever the folder those of FULMEN_UNITY_TREES, which have many
# small ones. What a file forgets to include, the stage apart of `./dev test --long` finds.
set(FULMEN_UNITY "all" CACHE
  STRING "Compile the files of a folder together: all, tests (and tools), or empty: none")
set(FULMEN_UNITY_FILES 12)
# The tests of drivers name their drivers' types alike; allocation_count replaces operator new.
set(FULMEN_NEVER_UNITY "/(tests/gpu_drivers/|tests/api/allocation_count)")
# Headers of systems define macros: tools/platform is no part of its tree.
set(FULMEN_UNITY_TREES src/cpu src/emulator tools)

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
  set(groups "")
  foreach(source ${ARGN})
    # Files of an instruction set have compiler flags of their own.
    if(source MATCHES "/tables/" OR source MATCHES "${FULMEN_NEVER_UNITY}")
      continue()
    endif()
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    foreach(tree ${FULMEN_UNITY_TREES})
      if(folder MATCHES "^${tree}/" AND NOT folder MATCHES "^tools/platform/")
        set(folder ${tree})
      endif()
    endforeach()
    string(MAKE_C_IDENTIFIER ${folder} group)
    list(APPEND groups ${group})
    list(APPEND of_${group} ${source})
  endforeach()
  list(REMOVE_DUPLICATES groups)
  foreach(group ${groups})
    list(LENGTH of_${group} count)
    math(EXPR parts "(${count} + ${FULMEN_UNITY_FILES} - 1) / ${FULMEN_UNITY_FILES}")
    set(number 0)
    foreach(source ${of_${group}})
      math(EXPR part "${number} * ${parts} / ${count}")
      math(EXPR number "${number} + 1")
      set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${group}_${part})
    endforeach()
  endforeach()
endfunction()

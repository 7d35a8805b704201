# googletest with this build's own compiler, architecture and sanitizers, from the distribution's
# sources.
find_path(FULMEN_GTEST_SOURCE CMakeLists.txt PATHS /usr/src/googletest
          NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH
          DOC "Sources of googletest")
if(FULMEN_GTEST_SOURCE)
  set(INSTALL_GTEST OFF)
  set(BUILD_GMOCK OFF CACHE BOOL "" FORCE)
  set(CMAKE_CXX_VISIBILITY_PRESET default)
  set(shared_libraries ${BUILD_SHARED_LIBS})
  set(BUILD_SHARED_LIBS OFF)
  add_subdirectory(${FULMEN_GTEST_SOURCE} ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
  set(BUILD_SHARED_LIBS ${shared_libraries})
  set(CMAKE_CXX_VISIBILITY_PRESET hidden)
  # Its headers are not ours to keep free of warnings.
  foreach(target gtest gtest_main)
    target_compile_options(${target} PRIVATE -O0)
    get_target_property(directories ${target} INTERFACE_INCLUDE_DIRECTORIES)
    set_target_properties(${target} PROPERTIES
      INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${directories}")
  endforeach()
else()
  message(WARNING
    "Tests are left out: no googletest sources (./dev test installs them, or set FULMEN_GTEST_SOURCE)")
endif()

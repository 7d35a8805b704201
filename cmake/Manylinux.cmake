# Links on Debian 12 (glibc 2.36) for any Linux with glibc 2.28 and GCC 8's libstdc++ or newer: what
# a wheel's tag manylinux_2_28 promises. The objects are those of every other build, so kernels are
# as fast as there. packaging/wheels has `auditwheel` check the result.
option(FULMEN_MANYLINUX "Link for manylinux_2_28, as ./dev wheels does" OFF)

set(_folder ${CMAKE_CURRENT_LIST_DIR}/manylinux)
if(FULMEN_MANYLINUX)
  set(_names stat lstat fstat fstat64 arc4random __libc_single_threaded)
  file(STRINGS ${_folder}/old_glibc.c _lines REGEX "^OLD\\(")
  foreach(_line IN LISTS _lines)
    string(REGEX REPLACE "^OLD\\(([a-z0-9_]+),.*" "\\1" _name "${_line}")
    list(APPEND _names ${_name})
  endforeach()
  list(TRANSFORM _names PREPEND -Wl,--wrap= OUTPUT_VARIABLE FULMEN_MANYLINUX_OPTIONS)
  # Threads and dlopen are libraries of their own there, which as-needed would leave out here.
  # Without tables of lines the build id is that of the code, wherever it is built.
  list(APPEND FULMEN_MANYLINUX_OPTIONS -Wl,-s -Wl,--exclude-libs,ALL
       -Wl,--push-state,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--pop-state)
endif()

# What GCC 8's libstdc++.so lacks, out of this one's archive: files of the target, hidden in it.
function(fulmen_newer_libstdcxx target)
  set(objects fs_dir.o fs_ops.o fs_path.o memory_resource.o floating_from_chars.o)
  set(folder ${PROJECT_BINARY_DIR}/newer_libstdcxx)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.a
                  OUTPUT_VARIABLE archive OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${CMAKE_AR} x ${archive} ${objects} WORKING_DIRECTORY ${folder}
                  COMMAND_ERROR_IS_FATAL ANY)
  list(TRANSFORM objects PREPEND ${folder}/)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${objects}>)
endfunction()

# Parts: libstdcxx, if the target has a libstdc++ of its own, or old_libstdcxx, if it shares the
# system's; newer_libstdcxx, if it then uses files' paths or reads numbers; program, if it is one.
function(fulmen_link_for_manylinux target) # parts...
  if(NOT FULMEN_MANYLINUX)
    return()
  endif()
  set(folder ${PROJECT_SOURCE_DIR}/cmake/manylinux)
  target_sources(${target} PRIVATE ${folder}/old_glibc.c)
  target_link_options(${target} PRIVATE ${FULMEN_MANYLINUX_OPTIONS})
  # A build's own path would leave room in the file that says how long it was.
  set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
  if("libstdcxx" IN_LIST ARGN)
    target_link_options(${target} PRIVATE -static-libstdc++)
  endif()
  if("old_libstdcxx" IN_LIST ARGN)
    target_sources(${target} PRIVATE ${folder}/old_libstdcxx.cpp)
    set_source_files_properties(${folder}/old_libstdcxx.cpp PROPERTIES
      SKIP_UNITY_BUILD_INCLUSION ON)
    foreach(name _ZNSt15__exception_ptr13exception_ptr9_M_addrefEv
      _ZNSt15__exception_ptr13exception_ptr10_M_releaseEv _ZSt28__throw_bad_array_new_lengthv)
      target_link_options(${target} PRIVATE -Wl,--wrap=${name})
    endforeach()
  endif()
  if("newer_libstdcxx" IN_LIST ARGN)
    fulmen_newer_libstdcxx(${target})
  endif()
  if("program" IN_LIST ARGN)
    target_sources(${target} PRIVATE ${folder}/program_start.c)
    target_link_options(${target} PRIVATE -Wl,--wrap=__libc_start_main)
  endif()
endfunction()

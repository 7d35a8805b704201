# Headers alone are used, so a path is all there is to find; that also serves cross builds, where
# the packages' own CMake files (for the machine's architecture) would not be found.
function(fulmen_header_only name header)
  find_path(FULMEN_${name}_INCLUDE_DIR ${header} DOC "Where <${header}> is")
  add_library(fulmen_${name} INTERFACE)
  if(FULMEN_${name}_INCLUDE_DIR AND CMAKE_CROSSCOMPILING AND NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    # Beside it are this machine's own C headers, which are not the other system's.
    cmake_path(GET header PARENT_PATH folder)
    file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/headers)
    file(CREATE_LINK ${FULMEN_${name}_INCLUDE_DIR}/${folder} ${PROJECT_BINARY_DIR}/headers/${folder}
         SYMBOLIC)
    target_include_directories(fulmen_${name} SYSTEM INTERFACE ${PROJECT_BINARY_DIR}/headers)
  elseif(FULMEN_${name}_INCLUDE_DIR)
    target_include_directories(fulmen_${name} SYSTEM INTERFACE ${FULMEN_${name}_INCLUDE_DIR})
  else()
    message(FATAL_ERROR
      "<${header}> was not found; ./dev build installs it, or point CMAKE_PREFIX_PATH at it")
  endif()
endfunction()

# Copies a folder to ${PROJECT_BINARY_DIR}/<name>, files that are the same excepted. `pip install .`
# builds in an environment whose path is another one each time: what is compiled with that path
# would be compiled anew each time, by ninja and by the compiler cache alike.
function(fulmen_at_one_place folder name)
  file(GLOB_RECURSE files RELATIVE ${folder} ${folder}/*)
  list(FILTER files EXCLUDE REGEX "\\.pyc$")
  foreach(file ${files})
    configure_file(${folder}/${file} ${PROJECT_BINARY_DIR}/${name}/${file} COPYONLY)
  endforeach()
endfunction()

# `pip install .` brings {fmt} as the build dependency cmeel-fmt, whose files lie in a folder of
# their own beside Python's packages.
if(FULMEN_PYTHON AND NOT WIN32)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
  execute_process(COMMAND ${Python_EXECUTABLE} -c
                  "import sys; print(';'.join(p + '/cmeel.prefix' for p in sys.path if p))"
                  OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE python_prefixes
                  COMMAND_ERROR_IS_FATAL ANY)
  foreach(prefix ${python_prefixes})
    if(EXISTS ${prefix}/include/fmt/format.h)
      fulmen_at_one_place(${prefix}/include/fmt build-environment/include/fmt)
      list(PREPEND CMAKE_PREFIX_PATH ${PROJECT_BINARY_DIR}/build-environment)
      break()
    endif()
  endforeach()
endif()
fulmen_header_only(fmt_headers fmt/format.h)
file(STRINGS ${FULMEN_fmt_headers_INCLUDE_DIR}/fmt/core.h fmt_version REGEX "define FMT_VERSION 9")
if(fmt_version)
  add_library(fulmen_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt.cpp)
  set_target_properties(fulmen_fmt PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(fulmen_fmt PUBLIC fulmen_fmt_headers)
else()
  # What has to be instantiated differs between versions: every file compiles its own.
  add_library(fulmen_fmt INTERFACE)
  target_compile_definitions(fulmen_fmt INTERFACE FMT_HEADER_ONLY=1)
  target_link_libraries(fulmen_fmt INTERFACE fulmen_fmt_headers)
endif()
# Fibers of the emulated GPU, linked statically: the library needs nothing of Boost where it runs.
# The archive is of this machine's architecture; without it the emulator is left out, and says so.
find_path(FULMEN_boost_context_INCLUDE_DIR boost/context/detail/fcontext.hpp
  DOC "Where <boost/context/...> is")
find_library(FULMEN_boost_context_LIBRARY NAMES libboost_context.a DOC "Boost.Context's archive")
add_library(fulmen_boost_context INTERFACE)
set(FULMEN_EMULATOR OFF)
if(FULMEN_boost_context_INCLUDE_DIR AND FULMEN_boost_context_LIBRARY AND NOT CMAKE_CROSSCOMPILING)
  set(FULMEN_EMULATOR ON)
  target_include_directories(fulmen_boost_context SYSTEM
    INTERFACE ${FULMEN_boost_context_INCLUDE_DIR})
  target_link_libraries(fulmen_boost_context INTERFACE ${FULMEN_boost_context_LIBRARY})
else()
  message(STATUS
    "The emulated GPU is left out: no Boost.Context for this architecture (apt-get install libboost-context-dev)")
endif()

if(FULMEN_TOOLS OR FULMEN_TESTS OR FULMEN_FUZZ)
  fulmen_header_only(cli11 CLI/CLI.hpp)
  fulmen_header_only(json nlohmann/json.hpp)
endif()

add_library(fulmen_threads INTERFACE)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
target_link_libraries(fulmen_threads INTERFACE Threads::Threads)

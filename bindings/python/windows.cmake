# The extension module for Windows, cross-compiled: its headers and import libraries are those of
# CPythons for Windows that packaging/windows_python puts into a folder, nanobind that of the Python
# on this machine. nanobind's own code is compiled, too: the package nanobind-backend has it by
# another compiler, whose exceptions this one does not catch.
set(FULMEN_WINDOWS_PYTHON "" CACHE PATH "CPython for Windows: VERSION/include and VERSION/libs")
set(FULMEN_NANOBIND "" CACHE PATH "The folder of Python's package nanobind")
if(NOT EXISTS ${FULMEN_WINDOWS_PYTHON}/3.11 OR NOT EXISTS ${FULMEN_NANOBIND}/include)
  message(FATAL_ERROR "FULMEN_WINDOWS_PYTHON is \"${FULMEN_WINDOWS_PYTHON}\" and FULMEN_NANOBIND "
    "\"${FULMEN_NANOBIND}\"; ./dev wheels windows sets them")
endif()
fulmen_at_one_place(${FULMEN_NANOBIND} build-environment/nanobind)
set(nanobind ${PROJECT_BINARY_DIR}/build-environment/nanobind)

# A module needs nothing but Python and the system, and has no time of its making in it.
function(fulmen_windows_module name python library)
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX .pyd)
  target_include_directories(${name} SYSTEM PRIVATE
    ${FULMEN_WINDOWS_PYTHON}/${python}/include ${nanobind}/include
    ${nanobind}/ext/robin_map/include)
  target_compile_options(${name} PRIVATE -fno-strict-aliasing -g0)
  target_link_libraries(${name} PRIVATE ${FULMEN_WINDOWS_PYTHON}/${python}/libs/${library}.lib
                        Threads::Threads)
endfunction()

list(FILTER sources EXCLUDE REGEX "/platform/posix")
add_library(_core MODULE ${sources})
fulmen_windows_module(_core 3.11 python3)
target_compile_definitions(_core PRIVATE Py_LIMITED_API=0x030A0000
  NB_BACKEND_MODULE=fulmen._nanobind)
target_include_directories(_core PRIVATE src)
target_compile_options(_core PRIVATE -Wall -Wextra $<$<BOOL:${FULMEN_WERROR}>:-Werror>)
target_link_libraries(_core PRIVATE fulmen)
set_source_files_properties(src/xla/xla_kv_cache.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
set_target_properties(_core PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)

file(GLOB pythons RELATIVE ${FULMEN_WINDOWS_PYTHON} ${FULMEN_WINDOWS_PYTHON}/3.*)
file(GLOB backend_sources ${nanobind}/src/*.cpp)
list(FILTER backend_sources EXCLUDE REGEX "/nb_(combined|ft)\\.cpp$")
set(backends)
foreach(python ${pythons})
  string(REPLACE "." "" digits ${python})
  set(name nanobind_backend_${digits})
  add_library(${name} MODULE ${backend_sources})
  fulmen_windows_module(${name} ${python} python${digits})
  target_compile_definitions(${name} PRIVATE NB_BUILD NB_BACKEND_NAME=_nb_backend_v1)
  target_compile_options(${name} PRIVATE -w)
  set_target_properties(${name} PROPERTIES
    OUTPUT_NAME _nb_backend_v1.cp${digits}-win_amd64
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/backends)
  list(APPEND backends ${name})
endforeach()
add_custom_target(fulmen_python DEPENDS _core fulmen ${backends})

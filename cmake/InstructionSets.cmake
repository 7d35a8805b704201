# The one table of instruction sets: architecture, name, compiler flags. A file tables/<name>.cpp is
# compiled with its line's flags, FULMEN_ISA_<NAME>=1 and FULMEN_ISA_FLAGS, which has the flags, and
# left out on other architectures; the rest of the target sees FULMEN_HAVE_ISA_<NAME>=1 for each set
# that is in. To add an instruction set, add a line here and the file.
set(_avx512
  "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mprefer-vector-width=512")
set(_amx "${_avx512} -mavx512bf16 -mamx-tile -mamx-bf16 -mamx-int8")
set(FULMEN_INSTRUCTION_SETS
  "any|scalar|"
  "x86|avx2|-mavx2 -mfma -mf16c"
  "x86|avx_vnni|-mavx2 -mfma -mf16c -mavxvnni"
  "x86|avx512|${_avx512}"
  "x86|avx512_vnni|${_avx512} -mavx512vnni"
  "x86|avx512_bf16|${_avx512} -mavx512bf16 -mavx512vnni"
  "x86|amx|${_amx}"
  "x86|amx_fp16|${_amx}"
  "arm|neon|-march=armv8-a"
  "arm|neon_dotprod|-march=armv8.2-a+dotprod"
  "arm|neon_i8mm|-march=armv8.2-a+i8mm")

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(FULMEN_ARCHITECTURE x86)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(FULMEN_ARCHITECTURE arm)
else()
  set(FULMEN_ARCHITECTURE other)
endif()

# For builds that run where they were made, as tests and `pip install .`: each instruction set takes
# half a minute to compile. `fulmen doctor` says which ones a build lacks.
set(FULMEN_ONLY_INSTRUCTION_SETS "" CACHE
  STRING "Instruction sets to build beside scalar, as a list; native: this machine's; empty: all")
set(FULMEN_WANTED_SETS scalar ${FULMEN_ONLY_INSTRUCTION_SETS})
if(FULMEN_ONLY_INSTRUCTION_SETS STREQUAL "native" AND
  (CMAKE_CROSSCOMPILING OR NOT EXISTS /proc/cpuinfo))
  message(STATUS "Which instruction sets are native is not known here: all are built")
  set(FULMEN_ONLY_INSTRUCTION_SETS "")
endif()
if(FULMEN_ONLY_INSTRUCTION_SETS STREQUAL "native")
  set(FULMEN_WANTED_SETS scalar neon neon_dotprod neon_i8mm)
  file(STRINGS /proc/cpuinfo _cpuinfo REGEX "^flags" LIMIT_COUNT 1)
  # An instruction set and its flag in /proc/cpuinfo.
  foreach(_row "avx2 avx2" "avx_vnni avx_vnni" "avx512 avx512bw" "avx512_vnni avx512_vnni"
    "avx512_bf16 avx512_bf16" "amx amx_bf16" "amx_fp16 amx_fp16")
    separate_arguments(_row)
    list(GET _row 1 _flag)
    if("${_cpuinfo} " MATCHES " ${_flag} ")
      list(GET _row 0 _name)
      list(APPEND FULMEN_WANTED_SETS ${_name})
    endif()
  endforeach()
endif()

# The same on every instruction set: kernels contract a*b+c as they are written for, and never look
# at errno.
set(FULMEN_KERNEL_FLAGS -O3 -ffp-contract=fast -fno-math-errno)
if(FULMEN_SANITIZE)
  # Minutes of compilation less, and stores that stay where the source has them.
  list(TRANSFORM FULMEN_KERNEL_FLAGS REPLACE -O3 -O1)
  # Half of what is left. AddressSanitizer sees where a pointer leads that is null or wrapped
  # around; bounds of arrays, signed sums, shifts and conversions stay checked.
  if(FULMEN_SANITIZE MATCHES undefined)
    list(APPEND
      FULMEN_KERNEL_FLAGS
      -fno-sanitize=pointer-overflow,null,alignment,object-size,bool,enum,return,unreachable,function)
  endif()
  # Half of that again: accesses are checked by calls. Tests take longer by less.
  if(FULMEN_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID STREQUAL Clang)
    list(APPEND FULMEN_KERNEL_FLAGS -fsanitize-address-outline-instrumentation)
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # g++ 12's own AVX-512 headers write `__m512 y = y` for an undefined register (its bug 105593).
  list(APPEND FULMEN_KERNEL_FLAGS -Wno-uninitialized -Wno-maybe-uninitialized)
endif()

include(CheckCXXCompilerFlag)

# The table's line for a name, or an empty string.
function(fulmen_instruction_set_line name result)
  set(line ${FULMEN_INSTRUCTION_SETS})
  list(FILTER line INCLUDE REGEX "^[^|]*\\|${name}\\|")
  set(${result} "${line}" PARENT_SCOPE)
endfunction()

# Whether this build has the instruction set of that line of the table.
function(fulmen_builds_instruction_set line result)
  string(REGEX REPLACE "^([^|]*)\\|([^|]*)\\|.*" "\\1;\\2" parts "${line}")
  list(GET parts 0 architecture)
  list(GET parts 1 name)
  set(${result} OFF PARENT_SCOPE)
  if(NOT architecture MATCHES "^(any|${FULMEN_ARCHITECTURE})$")
    return()
  endif()
  if(FULMEN_ONLY_INSTRUCTION_SETS STREQUAL "" OR name IN_LIST FULMEN_WANTED_SETS)
    set(${result} ON PARENT_SCOPE)
  endif()
endfunction()

# Whether tests of that instruction set, as a folder's name or a table's, are built. What AVX-512
# BF16 and AMX add to AVX-512, tests emulate on a processor that has the latter.
function(fulmen_tests_instruction_set line result)
  fulmen_builds_instruction_set("${line}" built)
  if(FULMEN_ARCHITECTURE STREQUAL "x86" AND line MATCHES "\\|(avx512_bf16|amx)\\|" AND
    avx512 IN_LIST FULMEN_WANTED_SETS)
    set(built ON)
  endif()
  set(${result} ${built} PARENT_SCOPE)
endfunction()

# Adds those tables/*.cpp among the sources that this architecture and compiler can build, and the
# other sources, to the target.
function(fulmen_target_sources target)
  fulmen_unity(${target} ${ARGN})
  foreach(source ${ARGN})
    if(NOT source MATCHES "/tables/([^/]+)\\.cpp$")
      target_sources(${target} PRIVATE ${source})
      continue()
    endif()
    set(name ${CMAKE_MATCH_1})
    string(TOUPPER ${name} upper)
    fulmen_instruction_set_line(${name} line)
    if(NOT line)
      message(FATAL_ERROR "${source}: no line for \"${name}\" in cmake/InstructionSets.cmake")
    endif()
    if(target MATCHES "^test_")
      fulmen_tests_instruction_set("${line}" built)
    else()
      fulmen_builds_instruction_set("${line}" built)
    endif()
    if(NOT built)
      continue()
    endif()
    string(REGEX MATCH "^[^|]*\\|[^|]*\\|(.*)$" _ "${line}")
    separate_arguments(flags UNIX_COMMAND "${CMAKE_MATCH_1}")
    if(flags)
      list(JOIN flags " " joined)
      check_cxx_compiler_flag("${joined}" FULMEN_COMPILER_HAS_${upper})
      if(NOT FULMEN_COMPILER_HAS_${upper})
        message(STATUS "Instruction set ${name} is left out: the compiler does not know ${joined}")
        continue()
      endif()
    endif()
    target_sources(${target} PRIVATE ${source})
    set(optimisation ${FULMEN_KERNEL_FLAGS})
    if(target MATCHES "^test_")
      # Half of the time to compile: these stand for hardware, or beside it.
      list(TRANSFORM optimisation REPLACE -O3 -O1)
    endif()
    set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS ${optimisation} ${flags})
    list(JOIN flags " " joined)
    set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS FULMEN_ISA_${upper}=1
                 "FULMEN_ISA_FLAGS=\"${joined}\"")
    target_compile_definitions(${target} PRIVATE FULMEN_HAVE_ISA_${upper}=1)
  endforeach()
endfunction()

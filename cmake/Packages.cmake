# `cpack` in the build folder makes fulmen_0.2.0_amd64.deb and fulmen-0.2.0-Linux-x86_64.tar.gz: the
# library, headers, CMake and pkg-config files, and the program. packaging/packages builds and tries
# them.
set(CPACK_GENERATOR "TGZ;DEB")
set(CPACK_PACKAGE_NAME fulmen)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "Fulmen developers <fulmen@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_FILE_NAME
  "fulmen-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
# The terms of what is compiled in, a changelog and a manual page (packaging/debian/make.py).
set(FULMEN_PACKAGE_FILES "" CACHE PATH
  "A folder with copyright, changelog.gz and fulmen.1.gz, which packages have")
if(FULMEN_PACKAGE_FILES)
  install(FILES ${FULMEN_PACKAGE_FILES}/copyright ${FULMEN_PACKAGE_FILES}/changelog.gz
          DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/fulmen)
  install(FILES ${FULMEN_PACKAGE_FILES}/fulmen.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${PROJECT_SOURCE_DIR}/packaging/debian/overrides
          DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides RENAME fulmen)
endif()
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
  "Attention and its gradients without the matrix of scores in memory, for C++
and C: the library, its headers, and a program that computes from files,
explains and checks what runs. CPUs need nothing else; kernels of AMD and
NVIDIA GPUs are compiled at run time by the compilers that are found.")
# What the files need is read from them.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/packaging/debian/triggers)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libopenblas0, clang-19")
include(CPack)

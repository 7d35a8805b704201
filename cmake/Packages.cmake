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
# The terms of what is compiled in.
set(FULMEN_COPYRIGHT "" CACHE FILEPATH "What packages have in share/doc/fulmen/copyright")
if(FULMEN_COPYRIGHT)
  install(FILES ${FULMEN_COPYRIGHT} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/fulmen
          RENAME copyright)
endif()
# What the files need is read from them. CPack adds scripts that call ldconfig.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libopenblas0, clang-19")
include(CPack)

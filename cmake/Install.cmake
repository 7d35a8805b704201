include(CMakePackageConfigHelpers)

install(TARGETS fulmen EXPORT fulmen-targets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/fulmen DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/fulmen)
if(TARGET fulmen_cli)
  install(TARGETS fulmen_cli)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fulmen)
install(EXPORT fulmen-targets NAMESPACE fulmen:: DESTINATION ${package_dir})
configure_file(${PROJECT_SOURCE_DIR}/cmake/fulmen-config.cmake.in
  ${PROJECT_BINARY_DIR}/fulmen-config.cmake @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/fulmen-config.cmake DESTINATION ${package_dir})
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fulmen-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fulmen-config-version.cmake DESTINATION ${package_dir})

# LIBDIR may have one part, "lib64", or two, "lib/x86_64-linux-gnu", or be a path from the root.
file(RELATIVE_PATH prefix_from_pkgconfig ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
  ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH include_from_prefix ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
# What a program links besides an archive. A shared library is often installed beside one, and has
# the last word in fulmen.pc.
set(archive_libs "-lstdc++ -lm -lpthread -ldl")
if(FULMEN_EMULATOR)
  string(PREPEND archive_libs "-l:libboost_context.a ")
endif()
if(BUILD_SHARED_LIBS)
  set(libs_private "Libs.private: ${archive_libs}\n")
  set(archive_libs)
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/fulmen.pc.in ${PROJECT_BINARY_DIR}/fulmen.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/fulmen.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(PROJECT_IS_TOP_LEVEL)
  include(Packages)
endif()

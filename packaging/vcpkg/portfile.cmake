# An overlay port: `vcpkg install fulmen --overlay-ports=packaging/vcpkg` in a clone, whose sources
# it builds. No registry has it yet.
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH packaging)
cmake_path(GET packaging PARENT_PATH SOURCE_PATH)

vcpkg_check_features(OUT_FEATURE_OPTIONS options FEATURES tools FULMEN_TOOLS)
string(COMPARE EQUAL "${VCPKG_LIBRARY_LINKAGE}" "dynamic" shared)
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS ${options} -DBUILD_SHARED_LIBS=${shared}
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/fulmen)
vcpkg_fixup_pkgconfig()
if("tools" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES fulmen AUTO_CLEAN)
endif()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share"
     "${CURRENT_PACKAGES_DIR}/share/licenses")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")

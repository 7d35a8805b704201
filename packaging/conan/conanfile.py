"""Conan 2: `conan create packaging/conan` from a clone. The library alone; the program is not
built."""

import pathlib
import shutil

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class Fulmen(ConanFile):
    name = "fulmen"
    version = "0.2.0"
    license = "MIT"
    description = "Exact attention as one fused operation, for CPUs, AMD and NVIDIA GPUs"
    topics = ("attention", "deep-learning", "cuda", "rocm", "simd")
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "system_fmt": [True, False]}
    default_options = {"shared": True, "fPIC": True, "system_fmt": False}
    package_type = "library"

    def export_sources(self):
        # Not "src/*" of the root: its build folders would be walked through.
        root, sources = (
            pathlib.Path(one) for one in (self.recipe_folder, self.export_sources_folder)
        )
        root = root.parents[1]
        for name in ("CMakeLists.txt", "LICENSE"):
            shutil.copy(root / name, sources)
        for name in ("cmake", "data", "include", "src"):
            copy(self, "*", root / name, sources / name)

    def config_options(self):
        if self.settings.os == "Windows":
            del self.options.fPIC

    def configure(self):
        if self.options.shared:
            self.options.rm_safe("fPIC")

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        # Its headers are compiled in: who links Fulmen needs none of it.
        if not self.options.system_fmt:
            self.requires("fmt/[>=9]", headers=True, libs=False, visible=False)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["FULMEN_TOOLS"] = False
        if not self.options.system_fmt:
            include = self.dependencies["fmt"].cpp_info.includedirs[0]
            toolchain.cache_variables["FULMEN_fmt_headers_INCLUDE_DIR"] = include
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, pathlib.Path(self.package_folder) / "licenses")
        CMake(self).install()

    def package_info(self):
        self.cpp_info.libs = ["fulmen"]
        self.cpp_info.set_property("cmake_target_name", "fulmen::fulmen")
        self.cpp_info.set_property("pkg_config_name", "fulmen")
        if not self.options.shared:
            self.cpp_info.defines = ["FULMEN_STATIC=1"]
            if self.settings.os == "Linux":
                self.cpp_info.system_libs = ["pthread", "dl", "m"]

//! Finds the library: in `FULMEN_DIR`, else by pkg-config, else it is built from its sources, which
//! this crate carries.

use std::env;
use std::path::Path;
#[cfg(feature = "vendored")]
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FULMEN_DIR");
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    if env::var_os("DOCS_RS").is_some() {
        return; // Nothing is linked for documentation.
    }
    if let Some(dir) = env::var_os("FULMEN_DIR") {
        link_in(Path::new(&dir));
    } else if !by_pkg_config() {
        build_sources();
    }
}

/// `dir` is an installation, or a build folder of CMake's.
fn link_in(dir: &Path) {
    for folder in ["lib", "lib64", "src", "."] {
        let folder = dir.join(folder);
        if folder.join("libfulmen.so").exists() {
            println!("cargo::rustc-link-search=native={}", folder.display());
            println!("cargo::rustc-link-lib=dylib=fulmen");
            return;
        }
    }
    panic!(
        "FULMEN_DIR is {}; libfulmen.so is neither there nor in its lib, lib64 or src",
        dir.display()
    );
}

fn by_pkg_config() -> bool {
    pkg_config::Config::new()
        .atleast_version(env!("CARGO_PKG_VERSION"))
        .probe("fulmen")
        .is_ok()
}

/// Builds what `library` has: links into the repository, or, in a package, what they led to.
#[cfg(feature = "vendored")]
fn build_sources() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let list = manifest.join("library/CMakeLists.txt");
    let list = list.canonicalize().unwrap_or_else(|error| {
        panic!(
            "{}: {error}; the library's sources belong there",
            list.display()
        )
    });
    let sources = list.parent().expect("a file has a folder");
    for part in ["CMakeLists.txt", "cmake", "data", "include", "src"] {
        println!("cargo::rerun-if-changed={}", sources.join(part).display());
    }
    let shared = !cfg!(feature = "static");
    let mut build = cmake::Config::new(sources);
    // A package carries {fmt}'s headers; in the repository they are the system's.
    let third_party = manifest.join("library/third_party");
    if third_party.exists() {
        build.define("FULMEN_fmt_headers_INCLUDE_DIR", third_party);
    }
    let installed = build
        .profile("Release")
        .define("FULMEN_TOOLS", "OFF")
        .define("FULMEN_TESTS", "OFF")
        .define("FULMEN_INSTALL", "ON")
        .define("FULMEN_OPENMP", "OFF") // the library has threads of its own
        .define("BUILD_SHARED_LIBS", if shared { "ON" } else { "OFF" })
        .define("CMAKE_INSTALL_LIBDIR", "lib")
        .build();
    if shared {
        link_in(&installed);
    } else {
        link_archive(&installed.join("lib"));
    }
}

/// The archive, and what its `fulmen.pc` says that a program links besides.
#[cfg(feature = "vendored")]
fn link_archive(folder: &Path) {
    println!("cargo::rustc-link-search=native={}", folder.display());
    println!("cargo::rustc-link-lib=static=fulmen");
    let description = folder.join("pkgconfig/fulmen.pc");
    let description = std::fs::read_to_string(&description)
        .unwrap_or_else(|error| panic!("{}: {error}", description.display()));
    let line = description.lines().find(|line| line.starts_with("Libs:"));
    for word in line.unwrap_or_default().split_whitespace() {
        match word.strip_prefix("-l") {
            Some("fulmen") | None => {}
            Some(name) => println!("cargo::rustc-link-lib={name}"),
        }
    }
}

#[cfg(not(feature = "vendored"))]
fn build_sources() {
    panic!(
        "libfulmen was not found: set FULMEN_DIR to its installation, have it found by pkg-config, \
         or build it with the feature `vendored`"
    );
}

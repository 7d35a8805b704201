//! Finds the library: in `FULMEN_DIR`, else by pkg-config, else it is built from its sources, which
//! this crate carries.
//!
//! Build scripts of crates that depend on this one directly read where it is: `DEP_FULMEN_LIB` is
//! the library's folder, for an rpath, and `DEP_FULMEN_INCLUDE` that of its headers, where known.

use std::env;
use std::path::{Path, PathBuf};

const ARCHIVE: &str = "libfulmen.a";

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
    let dir = &dir
        .canonicalize()
        .unwrap_or_else(|error| panic!("FULMEN_DIR is {}: {error}", dir.display()));
    let folders = ["lib", "lib64", "src", "."].map(|folder| dir.join(folder));
    if !link_found(&folders) {
        panic!(
            "FULMEN_DIR is {}, without {}; looked there and in its lib, lib64 and src",
            dir.display(),
            wanted()
        );
    }
    let include = dir.join("include");
    if include.exists() {
        println!("cargo::metadata=include={}", include.display());
    }
}

/// What a program for the target is linked with to use the shared library: on Windows, the DLL's
/// import library.
fn shared_file() -> &'static str {
    match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("windows") => "libfulmen.dll.a",
        Ok("macos") => "libfulmen.dylib",
        _ => "libfulmen.so",
    }
}

/// Links the first shared library in the folders, but with the feature `static`, or where there is
/// none, the first archive. Whether there was one.
fn link_found(folders: &[PathBuf]) -> bool {
    let with = |file: &str| folders.iter().find(|folder| folder.join(file).exists());
    let shared = with(shared_file()).filter(|_| !cfg!(feature = "static"));
    if let Some(folder) = shared {
        follow(&folder.join(shared_file()));
        link_shared(folder);
        // Windows' loader looks beside the program and in PATH.
        #[cfg(unix)]
        lend_to_cargo(folder);
    } else if let Some(folder) = with(ARCHIVE) {
        follow(&folder.join(ARCHIVE));
        link_archive(folder);
    } else {
        return false;
    }
    true
}

/// What a folder of a library lacks.
fn wanted() -> String {
    match cfg!(feature = "static") {
        true => "libfulmen.a, which the feature `static` takes".to_string(),
        false => format!("{} or libfulmen.a", shared_file()),
    }
}

/// A library that is built anew is taken anew.
fn follow(library: &Path) {
    println!("cargo::rerun-if-changed={}", library.display());
}

fn link_shared(folder: &Path) {
    println!("cargo::rustc-link-search=native={}", folder.display());
    println!("cargo::rustc-link-lib=dylib=fulmen");
    println!("cargo::metadata=lib={}", folder.display());
}

/// `cargo run` and `cargo test` have the loader look into the folders that build scripts name to
/// the linker, but for those outside of the target folder: links in there lead to the library.
#[cfg(unix)]
fn lend_to_cargo(folder: &Path) {
    let Some(out) = env::var_os("OUT_DIR").map(|out| PathBuf::from(out).join("found")) else {
        return;
    };
    let _ = std::fs::remove_dir_all(&out); // of another library
    let linked = std::fs::create_dir_all(&out).and_then(|()| {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if entry
                .file_name()
                .to_string_lossy()
                .starts_with("libfulmen.so")
            {
                std::os::unix::fs::symlink(entry.path(), out.join(entry.file_name()))?;
            }
        }
        Ok(())
    });
    match linked {
        Ok(()) => println!("cargo::rustc-link-search=native={}", out.display()),
        // Programs find the library by LD_LIBRARY_PATH or an rpath all the same.
        Err(error) => println!("cargo::warning={}: {error}", out.display()),
    }
}

/// The archive, and what its `fulmen.pc` says that a program links besides.
fn link_archive(folder: &Path) {
    // In an installation, and in a build folder.
    let description = ["pkgconfig/fulmen.pc", "../fulmen.pc"]
        .map(|path| folder.join(path))
        .into_iter()
        .find_map(|path| std::fs::read_to_string(path).ok())
        .unwrap_or_else(|| {
            panic!(
                "{} has an archive, and no pkgconfig/fulmen.pc that says what it needs: install it",
                folder.display()
            )
        });
    println!("cargo::rustc-link-search=native={}", folder.display());
    println!("cargo::rustc-link-lib=static=fulmen");
    println!("cargo::metadata=lib={}", folder.display());
    let lines = description.lines();
    let words = lines
        .filter(|line| line.starts_with("Libs"))
        .flat_map(str::split_whitespace)
        .filter_map(|word| word.strip_prefix("-l"));
    for name in words.filter(|name| *name != "fulmen") {
        match name.strip_prefix(':') {
            // A file's name: an archive that the program gets a part of.
            Some(file) => println!("cargo::rustc-link-lib=dylib:+verbatim={file}"),
            None => println!("cargo::rustc-link-lib={name}"),
        }
    }
}

/// pkg-config says where a library is; how it is linked is as for `FULMEN_DIR`.
fn by_pkg_config() -> bool {
    let Ok(found) = pkg_config::Config::new()
        .atleast_version(env!("CARGO_PKG_VERSION"))
        .cargo_metadata(false)
        .probe("fulmen")
    else {
        return false;
    };
    let whole = |folders: &[PathBuf]| -> Vec<PathBuf> {
        folders.iter().flat_map(|f| f.canonicalize()).collect()
    };
    if !link_found(&whole(&found.link_paths)) {
        panic!(
            "pkg-config has fulmen in {:?}, without {}",
            found.link_paths,
            wanted()
        );
    }
    if let Some(include) = whole(&found.include_paths).first() {
        println!("cargo::metadata=include={}", include.display());
    }
    true
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
    // A program finds a shared library by an rpath or LD_LIBRARY_PATH, which only cargo sets.
    let shared = cfg!(feature = "shared");
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
        .define("BUILD_SHARED_LIBS", if shared { "ON" } else { "OFF" })
        .define("CMAKE_INSTALL_LIBDIR", "lib")
        .build();
    let folder = installed.join("lib");
    if shared {
        link_shared(&folder);
    } else {
        link_archive(&folder);
    }
    println!(
        "cargo::metadata=include={}",
        installed.join("include").display()
    );
}

#[cfg(not(feature = "vendored"))]
fn build_sources() {
    panic!(
        "libfulmen was not found: set FULMEN_DIR to its installation, have it found by pkg-config, \
         or build it with the feature `vendored`"
    );
}

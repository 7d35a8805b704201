//! The bindings against the header that they were made from, and the library against both.

use std::ffi::CStr;
use std::fs;
use std::mem::{size_of, zeroed};
use std::path::Path;

use fulmen_sys as sys;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What `cksum` of POSIX prints for these bytes: a CRC of them and their number, and the number.
fn cksum(bytes: &[u8]) -> String {
    let count = bytes.len();
    let significant = count.to_le_bytes().len() - count.leading_zeros() as usize / 8;
    let all = bytes
        .iter()
        .chain(&count.to_le_bytes()[..significant])
        .copied()
        .collect::<Vec<_>>();
    let crc = all.into_iter().fold(0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte) << 24, |crc, _| match crc >> 31 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x04c1_1db7,
        })
    });
    format!("{} {count}", !crc)
}

#[test]
fn the_bindings_were_made_from_this_header() {
    assert_eq!(cksum(b"123456789"), "930766865 9"); // printf 123456789 | cksum
    let header = cksum(read("../../../include/fulmen/fulmen_c.h").as_bytes());
    let bindings = read("src/bindings.rs");
    let made_from = bindings
        .lines()
        .find_map(|line| line.strip_prefix("// header: "));
    assert_eq!(made_from, Some(&*header), "run bindings/rust/generate");
}

/// Names of functions, structs' fields aside: what a header says and stale bindings lack.
#[test]
fn the_bindings_have_every_function_of_the_header() {
    let (header, bindings) = (
        read("../../../include/fulmen/fulmen_c.h"),
        read("src/bindings.rs"),
    );
    let mut found = 0;
    for declaration in header.split("FULMEN_API ").skip(1) {
        let before = declaration.split('(').next().unwrap_or("");
        let name = before.rsplit([' ', '*']).next().unwrap_or("");
        let declared = format!("pub fn {name}(");
        assert!(
            bindings.contains(&declared),
            "{name} is missing: run bindings/rust/generate"
        );
        found += 1;
    }
    assert!(found > 40, "{found} functions in the header");
}

/// The init functions write no more than the caller's size, and set the defaults of the header. A
/// struct whose size differs from the library's would be refused, or leave its last fields as they
/// were.
#[test]
fn the_structs_are_the_librarys() {
    // SAFETY: zero is a value of each field.
    let mut options: sys::fulmen_options = unsafe { zeroed() };
    let size = size_of::<sys::fulmen_options>();
    // SAFETY: the size is the struct's.
    unsafe { sys::fulmen_options_init_sized(&mut options, size) };
    assert_eq!(options.struct_size, size);
    assert!(options.softmax_scale.is_nan());
    assert_eq!((options.window_left, options.window_right), (-1, -1));
    assert_eq!((options.max_seqlen_q, options.max_seqlen_k), (-1, -1));
    assert!(options.deterministic);
}

#[test]
fn a_wrong_call_has_a_sentence() {
    // SAFETY: null is a value that the library refuses.
    let status =
        unsafe { sys::fulmen_attention(std::ptr::null(), std::ptr::null(), std::ptr::null()) };
    assert_eq!(status, sys::FULMEN_INVALID_ARGUMENT as i32);
    // SAFETY: valid until this thread's next call.
    let sentence = unsafe { CStr::from_ptr(sys::fulmen_last_error()) };
    assert!(
        sentence.to_string_lossy().contains("tensors"),
        "{sentence:?}"
    );
}

#[test]
fn the_version_is_the_crates() {
    // SAFETY: the string is static.
    let version = unsafe { CStr::from_ptr(sys::fulmen_version()) };
    assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
}

//! Every struct of the bindings against the C compiler's view of the header.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// `Size of fulmen_tensor` and `Offset of field: fulmen_tensor::data`, with their numbers, of the
/// assertions that bindgen wrote and the Rust compiler has checked.
fn assertions(bindings: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for part in bindings.split("[\"").skip(1) {
        let Some((what, rest)) = part.split_once("\"]") else {
            continue;
        };
        let number = rest
            .split("- ")
            .nth(1)
            .and_then(|n| n.split("usize").next());
        let number = number.and_then(|n| n.trim().parse().ok());
        found.push((what.to_owned(), number.expect("a number follows")));
    }
    found
}

#[test]
fn sizes_and_offsets_are_those_of_c() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let bindings = fs::read_to_string(manifest.join("src/bindings.rs")).expect("it is there");
    let mut program = String::from("#include <stddef.h>\n#include <fulmen/fulmen_c.h>\n");
    let (mut sizes, mut offsets) = (0, 0);
    for (what, number) in assertions(&bindings) {
        let (expression, count) = if let Some(name) = what.strip_prefix("Size of ") {
            (format!("sizeof({name})"), &mut sizes)
        } else if let Some(field) = what.strip_prefix("Offset of field: ") {
            let (name, field) = field.split_once("::").expect("a struct and its field");
            (format!("offsetof({name}, {field})"), &mut offsets)
        } else {
            assert!(what.starts_with("Alignment of "), "{what}");
            let name = &what["Alignment of ".len()..];
            (format!("_Alignof({name})"), &mut 0)
        };
        *count += 1;
        writeln!(
            program,
            "_Static_assert({expression} == {number}, \"{what}\");"
        )
        .expect("memory");
    }
    let structs = bindings.matches("#[repr(C)]").count() - 1; // fulmen_plan has no fields
    assert_eq!(sizes, structs, "a struct of the bindings has no assertions");
    assert!(offsets > 100, "{offsets}");

    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("layout.c");
    fs::write(&file, program).expect("a file");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let output = Command::new(&compiler)
        .args(["-std=c11", "-fsyntax-only", "-I"])
        .arg(manifest.join("library/include"))
        .arg(&file)
        .output();
    let output = output.unwrap_or_else(|error| panic!("{compiler:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "run bindings/rust/generate\n{errors}"
    );
}

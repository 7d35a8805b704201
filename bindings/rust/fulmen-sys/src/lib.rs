//! The C ABI of Fulmen, exact attention as one fused operation.
//!
//! The items and their comments are those of `fulmen_c.h`; `docs/contract.md` has the formulas. The
//! header's inline functions are not here: a struct is set up by its `_init_sized` function.
//!
//! The library is found in `FULMEN_DIR` (an installation or a build folder), else by pkg-config,
//! else built by CMake (feature `vendored`, on by default).
#![allow(non_camel_case_types, non_upper_case_globals)]

// The header writes shapes in brackets, which are no links.
#[allow(rustdoc::broken_intra_doc_links)]
mod bindings;
pub mod compat;

pub use bindings::*;

//! The C ABI of Fulmen, exact attention as one fused operation.
//!
//! The items and their comments are those of `fulmen_c.h`; `docs/contract.md` has the formulas. The
//! header's inline functions are not here: a struct is set up by its `_init_sized` function.
//!
//! The library is found in `FULMEN_DIR` (an installation or a build folder), else by pkg-config,
//! else built by CMake (feature `vendored`, on by default); the README has the features.
//!
//! ```
//! use std::mem::{size_of, zeroed};
//!
//! use fulmen_sys as sys;
//!
//! let (q, mut out) = ([0.5f32; 64], [0f32; 64]); // [batch, seqlen, heads, head_dim]
//! let view = |data| sys::fulmen_tensor {
//!     data,
//!     dtype: sys::FULMEN_FP32 as i32,
//!     shape: [1, 4, 1, 16],
//!     strides: [64, 16, 16, 1],
//!     reserved: [0; 2],
//! };
//! // SAFETY: zero is a value of each field, and the tensors are as long as their shapes say.
//! unsafe {
//!     let mut tensors: sys::fulmen_tensors = zeroed();
//!     sys::fulmen_tensors_init_sized(&mut tensors, size_of::<sys::fulmen_tensors>());
//!     tensors.q = view(q.as_ptr().cast_mut().cast());
//!     (tensors.k, tensors.v) = (tensors.q, tensors.q);
//!     tensors.out = view(out.as_mut_ptr().cast());
//!     // Null: the defaults of the options, the default device.
//!     let status = sys::fulmen_attention(&tensors, std::ptr::null(), std::ptr::null());
//!     assert_eq!(status, sys::FULMEN_OK as i32);
//! }
//! assert_eq!(out, q); // the mean of rows that are all equal
//! ```
#![deny(missing_docs)]
#![allow(non_camel_case_types, non_upper_case_globals)]

// The header writes shapes in brackets, which are no links.
#[allow(rustdoc::broken_intra_doc_links)]
mod bindings;
pub mod compat;

pub use bindings::*;

//! The safe crate against the library's double-precision reference, and what it refuses.

mod backend;
mod backward;
mod devices;
mod errors;
mod flash_attn;
mod forward;
mod kv_cache;
mod lengths;
mod numbers;
mod plans;

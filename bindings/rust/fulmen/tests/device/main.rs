//! Calls in a device's own memory, checked on the host by the library's rule for right results.
//!
//! `FULMEN_TEST_DEVICE` names the device, `cuda:0` or `hip:0`; without it an emulated GPU runs them.

mod backward;
mod cache;
mod flash_attn;
mod forward;
mod memory;
#[path = "../safe/numbers.rs"]
mod numbers;

//! Exact attention for candle, forward and backward, on CPUs and NVIDIA GPUs: Fulmen behind the
//! functions of candle-flash-attn.
//!
//! The functions have candle-flash-attn's names and arguments, so a program changes one line of its
//! `Cargo.toml`:
//!
//! ```toml
//! candle-flash-attn = { package = "candle-fulmen", version = "0.2" }
//! ```
//!
//! What they do beyond it: they run on the CPU, in F32 too, they have gradients, any head dim up to
//! 576 and any page size do, and [`flash_attn_with_mask`], [`flash_attn_with_sinks`] and
//! [`flash_attn_with_dropout`] are there. [`Attention`] combines all options.
//!
//! ```
//! use candle_core::{DType, Device, Tensor, Var};
//! use candle_fulmen::flash_attn;
//!
//! let q = Var::randn(0f32, 1., (2, 7, 4, 32), &Device::Cpu)?; // [batch, seqlen, heads, head_dim]
//! let k = Tensor::randn(0f32, 1., (2, 9, 2, 32), &Device::Cpu)?;
//! let out = flash_attn(&q, &k, &k, 1. / 32f32.sqrt(), true)?;
//! let gradients = out.sqr()?.sum_all()?.backward()?;
//! assert_eq!(gradients.get(&q).unwrap().dims(), q.dims());
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! Tensors are read where candle keeps them, with their strides: a `transpose`, `narrow` or
//! `broadcast_as` before the call copies nothing, as long as the last dim stays contiguous. Errors
//! are [`candle_core::Error`] with the library's sentence, which names the argument, its value and
//! what is accepted.
#![deny(missing_docs)]

mod attention;
mod call;
#[cfg(feature = "cuda")]
mod cuda;
mod dense;
mod lengths;
mod memory;
mod op;
mod pool;
mod problem;
mod varlen;

pub use attention::Attention;
pub use dense::{
    flash_attn, flash_attn_alibi, flash_attn_alibi_windowed, flash_attn_alibi_windowed_softcap,
    flash_attn_windowed, flash_attn_with_dropout, flash_attn_with_mask, flash_attn_with_sinks,
    FlashAttn,
};
pub use lengths::Lengths;
pub use varlen::{
    flash_attn_varlen, flash_attn_varlen_alibi, flash_attn_varlen_alibi_windowed,
    flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_paged_windowed,
    flash_attn_varlen_windowed,
};

// The programs of the README, of the repository's and of the guide, compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../../../README.md")]
#[doc = include_str!("../../../../docs/guide/rust.md")]
struct Pages;

//! Exact attention as one fused operation, forward and backward, on CPUs, NVIDIA and AMD GPUs:
//! `out = softmax(scale * q k^T + bias, masked) v` without its matrix of scores.
//!
//! ```
//! use fulmen::{Attention, Causal, Forward, Tensor, TensorMut};
//!
//! let shape = [2, 7, 4, 32]; // [batch, seqlen, heads, head_dim]
//! let q: Vec<f32> = (0..2 * 7 * 4 * 32).map(|i| (i % 13) as f32 / 13.).collect();
//! let mut out = vec![0f32; q.len()];
//! let view = Tensor::bshd(&q, shape)?;
//! let mut call = Forward::new(view, view, view, TensorMut::bshd(&mut out, shape)?);
//! Attention::builder().causal(Causal::BottomRight).build()?.forward(&mut call)?;
//! assert_eq!(out[..32], q[..32]); // the first query attends the first key alone
//! # Ok::<(), fulmen::Error>(())
//! ```
//!
//! | | |
//! |---|---|
//! | [`Tensor`], [`TensorMut`] | views over slices of `f32`, [`half::f16`], [`half::bf16`] with any strides |
//! | [`Forward`], [`Backward`] | the tensors of a call: q, k, v, masks, sinks, lengths, pages, gradients |
//! | [`Attention`] | the options, and calls without a plan |
//! | [`Plan`] | the chosen kernel; runs allocate nothing, from any thread |
//! | [`AppendKv`] | new keys and values into a KV cache |
//! | [`quantize_kv`], [`dequantize_kv`] | keys and values in 8 bits and less |
//! | [`DeviceBuffer`], [`Stream`] | memory and streams of GPUs |
//! | [`flash_attn`] | candle-flash-attn's functions over views, raw device memory above all |
//! | [`AttentionBackend`] | a backend of your own beside the library's |
//! | [`ParallelFor`] | a thread pool of your own instead of the library's |
//! | [`devices`], [`kernels`], [`Plan::explain`], [`Attention::verify`] | what there is, what runs, whether it is right |
//! | [`set_log`], [`set_allocator`], [`add_prebuilt_path`], [`set_default_device`] | what the process sets for all calls |
//!
//! Views borrow, so aliasing is the compiler's matter: what is written is borrowed for the call
//! alone. Their bounds are checked when they are made. Memory of GPUs and streams come in by
//! `unsafe` constructors, which say what their callers promise; all else is safe.
//!
//! The library is found in `FULMEN_DIR`, else by pkg-config, else built by CMake (feature
//! `vendored`, on by default), which takes a C++20 compiler, {fmt}'s headers and some minutes.
//! `docs/contract.md` of Fulmen has the formulas, edges and bounds of errors.
#![deny(missing_docs)]

mod attention;
mod backend;
mod backend_call;
mod call;
mod device;
mod dtype;
mod error;
pub mod flash_attn;
mod inspect;
mod kv_cache;
mod layout;
mod memory;
mod plan;
mod pool;
mod process;
mod quantize;
mod tensor;

pub use half;

pub use attention::{Attention, AttentionBuilder, Causal, Precision};
pub use backend::{register_backend, unregister_backend, AttentionBackend, Features};
pub use backend_call::{BackendCall, BackendGradients, CallOptions, Input, Output, Shape, Shapes};
pub use call::{Backward, Call, Forward};
pub use device::{
    default_device, devices, kernels, set_default_device, set_log, version, Device, Kernel,
};
pub use dtype::{DType, Element, F8E4M3Fnuz, F8E5M2Fnuz, Number, F8E4M3, F8E5M2};
pub use error::{Error, Result};
pub use inspect::{Candidate, Description, GradientError, Gradients, VerifyReport};
pub use kv_cache::AppendKv;
pub use memory::{DeviceBuffer, Stream};
pub use plan::{KernelConfig, Plan, RunOptions, Workspace};
pub use pool::ParallelFor;
#[cfg(feature = "rayon")]
pub use pool::Rayon;
pub use process::{add_prebuilt_pack, add_prebuilt_path, reset_allocator, set_allocator};
pub use quantize::{dequantize_kv, quantize_kv, quantize_kv_by};
pub use tensor::{Tensor, TensorMut};

// The README's program, compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

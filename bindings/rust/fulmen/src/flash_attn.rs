//! candle-flash-attn's functions, with its names and the order of its arguments, over views: for
//! GPUs that candle does not have, AMD's by HIP. Behind q, k and v comes `out`, which is written.
//!
//! | function | |
//! |---|---|
//! | [`flash_attn`], [`flash_attn_windowed`], [`flash_attn_alibi`], [`flash_attn_alibi_windowed`], [`flash_attn_alibi_windowed_softcap`] | sequences of one length |
//! | [`flash_attn_varlen`], [`flash_attn_varlen_windowed`], [`flash_attn_varlen_alibi`], [`flash_attn_varlen_alibi_windowed`], [`flash_attn_varlen_alibi_windowed_softcap`] | packed sequences of different lengths |
//! | [`flash_attn_varlen_paged_windowed`] | packed queries; keys and values in pages |
//! | [`flash_attn_with_mask`], [`flash_attn_with_sinks`], [`flash_attn_with_dropout`] | what candle-flash-attn does not have |
//!
//! q, k, v and out are all `f32`, all `f16` or all `bf16`; `head_dim` is 1 to 512. v and out may
//! have another `head_dim` than q and k.
//!
//! Views of a GPU's memory are made by [`Tensor::from_raw`] and [`TensorMut::from_raw`], streams by
//! [`Stream::from_raw`]: their documentation says what callers must guarantee. Gradients are
//! [`crate::Backward`]'s.
//!
//! # Errors
//!
//! All functions return the same errors, and write nothing then:
//!
//! - [`Error::InvalidArgument`](crate::Error::InvalidArgument): a shape, dtype, stride or number
//!   that is not accepted. The message names the argument and its value. The values of lengths and
//!   of a block table are checked on the CPU; on a GPU only the kernel reads them.
//! - [`Error::Unsupported`](crate::Error::Unsupported): no kernel of the device takes the call.
//! - [`Error::Unavailable`](crate::Error::Unavailable): the device is not there.
//!
//! ```
//! use fulmen::flash_attn::{flash_attn, Place};
//! use fulmen::{Stream, Tensor, TensorMut};
//!
//! let shape = [1, 4, 2, 8];
//! let (q, v, mut out) = (vec![0f32; 64], vec![2f32; 64], vec![0f32; 64]);
//! // On a GPU: `hip:0`, a stream of it, and `Tensor::from_raw`.
//! // SAFETY: the CPU has no streams.
//! let stream = unsafe { Stream::from_raw(std::ptr::null_mut()) };
//! let place = Place { device: "cpu", stream: &stream };
//! let (q, v) = (Tensor::bshd(&q, shape)?, Tensor::bshd(&v, shape)?);
//! flash_attn(place, q, q, v, TensorMut::bshd(&mut out, shape)?, 0.125, true)?;
//! assert_eq!(out, [2.; 64]);
//! # Ok::<(), fulmen::Error>(())
//! ```
#![allow(clippy::too_many_arguments)]

#[cfg(doc)]
use crate::TensorMut;
use crate::{Attention, AttentionBuilder, Forward, Result, Stream, Tensor};

/// The first lines of the examples: `place` is the CPU. They are hidden.
macro_rules! place {
    () => {
        "# use fulmen::{flash_attn::*, Stream, Tensor, TensorMut};
# // SAFETY: the CPU has no streams.
# let stream = unsafe { Stream::from_raw(std::ptr::null_mut()) };
# let place = Place { device: \"cpu\", stream: &stream };"
    };
}

/// The tensors of the examples with packed sequences, behind `place!`.
macro_rules! packed {
    () => {
        concat!(
            place!(),
            "
let q = Tensor::bshd(&[1f32; 3], [1, 3, 1, 1])?;
let k = Tensor::bshd(&[0f32; 4], [1, 4, 1, 1])?; // all scores are 0
let v = Tensor::bshd(&[1f32, 3., 5., 7.], [1, 4, 1, 1])?;
let seqlens_q = Tensor::one_dim(&[0i32, 1, 3])?; // one query, then two
let seqlens_k = Tensor::one_dim(&[0i32, 2, 4])?; // two keys each
let mut out = [0f32; 3];
let to = TensorMut::bshd(&mut out, [1, 3, 1, 1])?;"
        )
    };
}

mod dense;
mod paged;
mod prefix;
mod varlen;

pub use dense::{
    flash_attn, flash_attn_alibi, flash_attn_alibi_windowed, flash_attn_alibi_windowed_softcap,
    flash_attn_windowed, flash_attn_with_dropout, flash_attn_with_mask, flash_attn_with_sinks,
};
pub use paged::flash_attn_varlen_paged_windowed;
pub use varlen::{
    flash_attn_varlen, flash_attn_varlen_alibi, flash_attn_varlen_alibi_windowed,
    flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_windowed,
};

/// Where a call runs. It returns when its work is in the stream.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// `hip:0`, `cuda:0`, `cpu`: a name of [`crate::devices`].
    pub device: &'a str,
    /// A stream of the device's.
    pub stream: &'a Stream,
}

/// The most keys on the left and on the right of a query's position.
type Window = [Option<usize>; 2];

impl Place<'_> {
    fn attention(self, softmax_scale: f32, window: Window, softcap: f32) -> AttentionBuilder {
        let [left, right] = window;
        Attention::builder()
            .device(self.device)
            .softmax_scale(softmax_scale)
            .window(left, right)
            .softcap(softcap)
    }

    fn run(self, attention: AttentionBuilder, mut call: Forward<'_>) -> Result<()> {
        attention.build()?.forward_in(self.stream, &mut call)
    }
}

fn causal_window(causal: bool) -> Option<usize> {
    causal.then_some(0)
}

/// A limit above the number of keys is none, as in candle-flash-attn.
fn limited(window: Window, seqlen_k: usize) -> Window {
    window.map(|keys| keys.filter(|&keys| keys <= seqlen_k))
}

fn with_slopes<'a>(call: Forward<'a>, alibi_slopes: Option<Tensor<'a>>) -> Forward<'a> {
    match alibi_slopes {
        Some(slopes) => call.alibi_slopes(slopes),
        None => call,
    }
}

//! candle-flash-attn's functions, with its names and the order of its arguments, over views: for
//! GPUs that candle does not have, AMD's by HIP.
//!
//! Views of a GPU's memory are made by [`Tensor::from_raw`] and [`TensorMut::from_raw`], streams by
//! [`Stream::from_raw`]: there stands what their callers promise. Gradients, masks, sinks, dropout
//! and pages are [`Forward`]'s and [`crate::Backward`]'s.
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

use crate::{Attention, AttentionBuilder, Forward, Result, Stream, Tensor, TensorMut};

/// Where a call runs. It returns when its work is in the stream.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// `hip:0`, `cuda:0`, `cpu`: a name of [`crate::devices`].
    pub device: &'a str,
    /// A stream of the device's.
    pub stream: &'a Stream,
}

impl Place<'_> {
    fn attention(
        self,
        softmax_scale: f32,
        window_size_left: Option<usize>,
        window_size_right: Option<usize>,
        softcap: f32,
    ) -> AttentionBuilder {
        Attention::builder()
            .device(self.device)
            .softmax_scale(softmax_scale)
            .window(window_size_left, window_size_right)
            .softcap(softcap)
    }
}

fn causal_window(causal: bool) -> Option<usize> {
    causal.then_some(0)
}

/// Attention of q over k and v `[batch, seqlen, heads, head_dim]`, into `out`. Causal: the last query
/// is on the diagonal with the last key.
pub fn flash_attn(
    place: Place<'_>,
    q: Tensor<'_>,
    k: Tensor<'_>,
    v: Tensor<'_>,
    out: TensorMut<'_>,
    softmax_scale: f32,
    causal: bool,
) -> Result<()> {
    let right = causal_window(causal);
    flash_attn_windowed(place, q, k, v, out, softmax_scale, None, right)
}

/// [`flash_attn`] where a query attends the keys from `window_size_left` before to
/// `window_size_right` behind its own position; `None` is unlimited.
pub fn flash_attn_windowed(
    place: Place<'_>,
    q: Tensor<'_>,
    k: Tensor<'_>,
    v: Tensor<'_>,
    out: TensorMut<'_>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<()> {
    let (left, right) = (window_size_left, window_size_right);
    flash_attn_alibi_windowed_softcap(place, q, k, v, out, None, softmax_scale, left, right, 0.)
}

/// [`flash_attn`] with ALiBi slopes, `[heads]` of `f32`.
pub fn flash_attn_alibi(
    place: Place<'_>,
    q: Tensor<'_>,
    k: Tensor<'_>,
    v: Tensor<'_>,
    out: TensorMut<'_>,
    alibi_slopes: Tensor<'_>,
    softmax_scale: f32,
    causal: bool,
) -> Result<()> {
    let right = causal_window(causal);
    flash_attn_alibi_windowed(
        place,
        q,
        k,
        v,
        out,
        alibi_slopes,
        softmax_scale,
        None,
        right,
    )
}

/// [`flash_attn_windowed`] with ALiBi slopes.
pub fn flash_attn_alibi_windowed(
    place: Place<'_>,
    q: Tensor<'_>,
    k: Tensor<'_>,
    v: Tensor<'_>,
    out: TensorMut<'_>,
    alibi_slopes: Tensor<'_>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<()> {
    let (slopes, left, right) = (Some(alibi_slopes), window_size_left, window_size_right);
    flash_attn_alibi_windowed_softcap(place, q, k, v, out, slopes, softmax_scale, left, right, 0.)
}

/// [`flash_attn_alibi_windowed`] where scores become `softcap * tanh(score / softcap)` first.
pub fn flash_attn_alibi_windowed_softcap(
    place: Place<'_>,
    q: Tensor<'_>,
    k: Tensor<'_>,
    v: Tensor<'_>,
    out: TensorMut<'_>,
    alibi_slopes: Option<Tensor<'_>>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<()> {
    let mut call = Forward::new(q, k, v, out);
    if let Some(slopes) = alibi_slopes {
        call = call.alibi_slopes(slopes);
    }
    let (left, right) = (window_size_left, window_size_right);
    let attention = place
        .attention(softmax_scale, left, right, softcap)
        .build()?;
    attention.forward_in(place.stream, &mut call)
}

/// [`flash_attn`] of packed sequences of different lengths: q and out are `[1, total_q, heads, head_dim]`, k and v
/// `[1, total_k, kv_heads, head_dim]`, the lengths `[batch + 1]` of `i32`.
pub fn flash_attn_varlen(
    place: Place<'_>,
    q: Tensor<'_>,
    k: Tensor<'_>,
    v: Tensor<'_>,
    out: TensorMut<'_>,
    seqlens_q: Tensor<'_>,
    seqlens_k: Tensor<'_>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<()> {
    let attention = place
        .attention(softmax_scale, None, causal_window(causal), 0.)
        .max_seqlen_q(max_seqlen_q)
        .max_seqlen_k(max_seqlen_k)
        .build()?;
    let call = Forward::new(q, k, v, out).cu_seqlens_q(seqlens_q);
    attention.forward_in(place.stream, &mut call.cu_seqlens_k(seqlens_k))
}

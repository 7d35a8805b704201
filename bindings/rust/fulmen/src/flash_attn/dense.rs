//! `flash_attn` and its forms: sequences of one length.

use super::{causal_window, limited, with_slopes, Place};
use crate::{DType, Forward, Result, Tensor, TensorMut};

/// The examples' tensors, behind `place!`.
macro_rules! tensors {
    () => {
        concat!(
            place!(),
            "
let q = Tensor::bshd(&[0f32; 2], [1, 2, 1, 1])?; // all scores are 0
let v = Tensor::bshd(&[1f32, 3.], [1, 2, 1, 1])?;
let mut out = [0f32; 2];
let to = TensorMut::bshd(&mut out, [1, 2, 1, 1])?;"
        )
    };
}

/// Attention of q over k and v, into `out`.
///
/// * `q`, `out` - `[batch, seqlen_q, heads, head_dim]`
/// * `k`, `v` - `[batch, seqlen_k, kv_heads, head_dim]`; `kv_heads` divides `heads`
/// * `softmax_scale` - the factor of `q . k`
/// * `causal` - masks the keys behind a query; the last query is on the diagonal with the last key
///
/// ```
#[doc = tensors!()]
/// flash_attn(place, q, q, v, to, 1., true)?;
/// assert_eq!(out, [1., 2.]); // of one key, of two
/// # Ok::<(), fulmen::Error>(())
/// ```
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
/// `window_size_right` behind its own position. `None`, or more than `seqlen_k`, is unlimited;
/// `None` and `Some(0)` are causal.
///
/// ```
#[doc = tensors!()]
/// flash_attn_windowed(place, q, q, v, to, 1., Some(0), Some(0))?; // its own key alone
/// assert_eq!(out, [1., 3.]);
/// # Ok::<(), fulmen::Error>(())
/// ```
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

/// [`flash_attn`] with ALiBi: `alibi_slopes`, `[heads]` of `f32`, times the distance is subtracted
/// from a score.
///
/// ```
#[doc = tensors!()]
/// let slopes = Tensor::one_dim(&[1e3f32])?; // so steep that the nearest key is all that counts
/// flash_attn_alibi(place, q, q, v, to, slopes, 1., false)?;
/// assert_eq!(out, [1., 3.]);
/// # Ok::<(), fulmen::Error>(())
/// ```
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
    let (scale, right) = (softmax_scale, causal_window(causal));
    flash_attn_alibi_windowed(place, q, k, v, out, alibi_slopes, scale, None, right)
}

/// [`flash_attn_windowed`] with the ALiBi of [`flash_attn_alibi`].
///
/// ```
#[doc = tensors!()]
/// let slopes = Tensor::one_dim(&[0f32])?;
/// flash_attn_alibi_windowed(place, q, q, v, to, slopes, 1., None, Some(0))?;
/// assert_eq!(out, [1., 2.]);
/// # Ok::<(), fulmen::Error>(())
/// ```
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

/// [`flash_attn_alibi_windowed`] where scores become `softcap * tanh(score / softcap)` first; a
/// `softcap` of 0 is off.
///
/// ```
#[doc = tensors!()]
/// flash_attn_alibi_windowed_softcap(place, q, q, v, to, None, 1., None, Some(0), 30.)?;
/// assert_eq!(out, [1., 2.]);
/// # Ok::<(), fulmen::Error>(())
/// ```
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
    let window = limited([window_size_left, window_size_right], k.shape()[1]);
    let call = with_slopes(Forward::new(q, k, v, out), alibi_slopes);
    place.run(place.attention(softmax_scale, window, softcap), call)
}

/// [`flash_attn`] with a mask.
///
/// `mask` is `[batch, heads, seqlen_q, seqlen_k]` ([`Tensor::bhqk`]); each dim but the last may be
/// 1. `f32`, `f16` and `bf16` are added to the scores. A mask of `bool` or `u8` has a key attended
/// where it is not 0. `None` is [`flash_attn`].
///
/// # Errors
///
/// Those of the [module](crate::flash_attn#errors): `InvalidArgument` where the mask has another
/// shape or is of `i32`.
///
/// ```
#[doc = tensors!()]
/// let first = Tensor::bhqk(&[true, false], [1, 1, 1, 2])?; // for both queries
/// flash_attn_with_mask(place, q, q, v, to, Some(first), 1., false)?;
/// assert_eq!(out, [1., 1.]);
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn flash_attn_with_mask(
    place: Place<'_>,
    q: Tensor<'_>,
    k: Tensor<'_>,
    v: Tensor<'_>,
    out: TensorMut<'_>,
    mask: Option<Tensor<'_>>,
    softmax_scale: f32,
    causal: bool,
) -> Result<()> {
    let call = Forward::new(q, k, v, out);
    let call = match mask {
        Some(mask) if mask.dtype() == DType::Bool => call.keep_mask(mask),
        Some(mask) => call.bias(mask),
        None => call,
    };
    let window = [None, causal_window(causal)];
    place.run(place.attention(softmax_scale, window, 0.), call)
}

/// [`flash_attn_windowed`] with attention sinks.
///
/// `sinks` is `[heads]` of `f32` ([`Tensor::one_dim`]): one more score in the denominator, without
/// a value. `softmax_scale` is no factor of it.
///
/// # Errors
///
/// Those of the [module](crate::flash_attn#errors): `InvalidArgument` where the sinks are not one
/// `f32` a head.
///
/// ```
#[doc = tensors!()]
/// let sinks = Tensor::one_dim(&[0f32])?; // as much as the one key
/// flash_attn_with_sinks(place, q, q, v, to, sinks, 1., Some(0), Some(0))?;
/// assert_eq!(out, [0.5, 1.5]);
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn flash_attn_with_sinks(
    place: Place<'_>,
    q: Tensor<'_>,
    k: Tensor<'_>,
    v: Tensor<'_>,
    out: TensorMut<'_>,
    sinks: Tensor<'_>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<()> {
    let window = limited([window_size_left, window_size_right], k.shape()[1]);
    let call = Forward::new(q, k, v, out).sinks(sinks);
    place.run(place.attention(softmax_scale, window, 0.), call)
}

/// [`flash_attn`] with dropout of the softmax.
///
/// Each element is dropped with the probability `dropout`, from 0 to below 1; the others become
/// `1 / (1 - dropout)` times as large. The same `seed` and `offset` drop the same elements, on
/// every device; give each call of a training another `offset`. The backward pass gets the same
/// pair by [`crate::Backward::dropout_numbers`].
///
/// # Errors
///
/// Those of the [module](crate::flash_attn#errors): `InvalidArgument` where `dropout` is not in
/// this range.
///
/// ```
#[doc = tensors!()]
/// flash_attn_with_dropout(place, q, q, v, to, 1., true, 0.5, 42, 0)?;
/// assert!(out[0] == 0. || out[0] == 2.); // its one key is dropped, or is twice as large
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn flash_attn_with_dropout(
    place: Place<'_>,
    q: Tensor<'_>,
    k: Tensor<'_>,
    v: Tensor<'_>,
    out: TensorMut<'_>,
    softmax_scale: f32,
    causal: bool,
    dropout: f32,
    seed: u64,
    offset: u64,
) -> Result<()> {
    let attention = place
        .attention(softmax_scale, [None, causal_window(causal)], 0.)
        .dropout(dropout);
    let call = Forward::new(q, k, v, out).dropout_numbers(seed, offset);
    place.run(attention, call)
}

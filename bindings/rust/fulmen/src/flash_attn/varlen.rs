//! `flash_attn_varlen` and its forms: packed sequences of different lengths.

use super::{causal_window, limited, with_slopes, Place};
use crate::{AttentionBuilder, Forward, Result, Tensor, TensorMut};

/// Where each sequence of a batch lies.
#[derive(Clone, Copy)]
pub(super) struct Lengths<'a> {
    pub(super) seqlens_q: Tensor<'a>,
    pub(super) seqlens_k: Tensor<'a>,
    pub(super) max_seqlen_q: usize,
    pub(super) max_seqlen_k: usize,
}

impl<'a> Lengths<'a> {
    pub(super) fn run(
        self,
        place: Place<'_>,
        attention: AttentionBuilder,
        call: Forward<'a>,
    ) -> Result<()> {
        let attention = attention
            .max_seqlen_q(self.max_seqlen_q)
            .max_seqlen_k(self.max_seqlen_k);
        let call = call.cu_seqlens_q(self.seqlens_q);
        place.run(attention, call.cu_seqlens_k(self.seqlens_k))
    }
}

/// [`flash_attn`](super::flash_attn) of packed sequences of different lengths.
///
/// * `q`, `out` - `[1, total_q, heads, head_dim]`
/// * `k`, `v` - `[1, total_k, kv_heads, head_dim]`; `kv_heads` divides `heads`
/// * `seqlens_q`, `seqlens_k` - `[batch + 1]` cumulative lengths of `i32` ([`Tensor::one_dim`]): 0,
///   the first length, the sum of the first two, ...
/// * `max_seqlen_q`, `max_seqlen_k` - no sequence is longer
/// * `causal` - the last query of each sequence is on the diagonal with its last key
///
/// Rows of `out` that belong to no sequence are not written.
///
/// ```
#[doc = packed!()]
/// flash_attn_varlen(place, q, k, v, to, seqlens_q, seqlens_k, 2, 2, 1., true)?;
/// assert_eq!(out, [2., 5., 6.]);
/// # Ok::<(), fulmen::Error>(())
/// ```
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
    flash_attn_varlen_windowed(
        place,
        q,
        k,
        v,
        out,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        None,
        causal_window(causal),
    )
}

/// [`flash_attn_varlen`] with the window of [`flash_attn_windowed`](super::flash_attn_windowed):
/// `None`, or more than `max_seqlen_k`, is unlimited. The tensors are those of
/// [`flash_attn_varlen`].
///
/// # Errors
///
/// Those of the [module](crate::flash_attn#errors): `InvalidArgument` where the lengths are not
/// `[batch + 1]` of `i32`, or, on the CPU, do not ascend, lead behind the rows that there are, or
/// are longer than their maximum.
///
/// ```
#[doc = packed!()]
/// let own = Some(0);
/// flash_attn_varlen_windowed(place, q, k, v, to, seqlens_q, seqlens_k, 2, 2, 1., own, own)?;
/// assert_eq!(out, [3., 5., 7.]); // the one query of the first sequence is at its last key
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn flash_attn_varlen_windowed(
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
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<()> {
    flash_attn_varlen_alibi_windowed_softcap(
        place,
        q,
        k,
        v,
        out,
        None,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        window_size_left,
        window_size_right,
        0.,
    )
}

/// [`flash_attn_varlen`] with the ALiBi of [`flash_attn_alibi`](super::flash_attn_alibi).
///
/// `alibi_slopes` is `[heads]` of `f32` ([`Tensor::one_dim`]), or `[batch, 1, 1, heads]`.
///
/// # Errors
///
/// Those of [`flash_attn_varlen_windowed`], and `InvalidArgument` where the slopes have another
/// shape or dtype.
///
/// ```
#[doc = packed!()]
/// let steep = Tensor::one_dim(&[100f32])?; // the nearest key alone
/// flash_attn_varlen_alibi(place, q, k, v, to, steep, seqlens_q, seqlens_k, 2, 2, 1., false)?;
/// assert_eq!(out, [3., 5., 7.]);
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn flash_attn_varlen_alibi(
    place: Place<'_>,
    q: Tensor<'_>,
    k: Tensor<'_>,
    v: Tensor<'_>,
    out: TensorMut<'_>,
    alibi_slopes: Tensor<'_>,
    seqlens_q: Tensor<'_>,
    seqlens_k: Tensor<'_>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<()> {
    flash_attn_varlen_alibi_windowed(
        place,
        q,
        k,
        v,
        out,
        alibi_slopes,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        None,
        causal_window(causal),
    )
}

/// [`flash_attn_varlen_windowed`] with the slopes and errors of [`flash_attn_varlen_alibi`].
///
/// ```
#[doc = packed!()]
/// let (steep, left) = (Tensor::one_dim(&[100f32])?, Some(1));
/// flash_attn_varlen_alibi_windowed(
///     place, q, k, v, to, steep, seqlens_q, seqlens_k, 2, 2, 1., left, Some(0),
/// )?;
/// assert_eq!(out, [3., 5., 7.]);
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn flash_attn_varlen_alibi_windowed(
    place: Place<'_>,
    q: Tensor<'_>,
    k: Tensor<'_>,
    v: Tensor<'_>,
    out: TensorMut<'_>,
    alibi_slopes: Tensor<'_>,
    seqlens_q: Tensor<'_>,
    seqlens_k: Tensor<'_>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<()> {
    flash_attn_varlen_alibi_windowed_softcap(
        place,
        q,
        k,
        v,
        out,
        Some(alibi_slopes),
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        window_size_left,
        window_size_right,
        0.,
    )
}

/// [`flash_attn_varlen_alibi_windowed`] where scores become `softcap * tanh(score / softcap)`
/// first. A `softcap` of 0 is off, and so is ALiBi without slopes.
///
/// # Errors
///
/// Those of [`flash_attn_varlen_alibi`], and `InvalidArgument` where `softcap` is negative or not
/// finite.
///
/// ```
#[doc = packed!()]
/// let k = Tensor::bshd(&[90f32, -90., 90., -90.], [1, 4, 1, 1])?;
/// let cap = 3f32.ln() / 2.; // the larger weight is three times the smaller
/// flash_attn_varlen_alibi_windowed_softcap(
///     place, q, k, v, to, None, seqlens_q, seqlens_k, 2, 2, 1., None, None, cap,
/// )?;
/// assert!((out[0] - 1.5).abs() < 1e-5 && (out[1] - 5.5).abs() < 1e-5);
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn flash_attn_varlen_alibi_windowed_softcap(
    place: Place<'_>,
    q: Tensor<'_>,
    k: Tensor<'_>,
    v: Tensor<'_>,
    out: TensorMut<'_>,
    alibi_slopes: Option<Tensor<'_>>,
    seqlens_q: Tensor<'_>,
    seqlens_k: Tensor<'_>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<()> {
    let lengths = Lengths {
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
    };
    let window = limited([window_size_left, window_size_right], max_seqlen_k);
    let call = with_slopes(Forward::new(q, k, v, out), alibi_slopes);
    lengths.run(place, place.attention(softmax_scale, window, softcap), call)
}

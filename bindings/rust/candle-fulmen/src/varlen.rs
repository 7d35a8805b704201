//! `flash_attn_varlen` and its forms: packed sequences of different lengths, and pages.
#![allow(clippy::too_many_arguments)]

use candle_core::{bail, Result, Tensor};

use crate::dense::options;
use crate::lengths::Lengths;

/// The examples' tensors: all scores are 0, so a result is the mean of the values that a query
/// attends. The first sequence has one query, the second two; each has two keys.
macro_rules! packed {
    () => {
        "# use candle_core::{DType, Device, Tensor};
# use candle_fulmen::*;
# let cpu = &Device::Cpu;
let q = Tensor::zeros((3, 1, 8), DType::F32, cpu)?;
let k = Tensor::zeros((4, 1, 8), DType::F32, cpu)?;
let v = Tensor::new(&[1f32, 3., 5., 7.], cpu)?.reshape((4, 1, 1))?;
let seqlens_q = Tensor::new(&[0u32, 1, 3], cpu)?; // one query, then two
let seqlens_k = Tensor::new(&[0u32, 2, 4], cpu)?; // two keys each"
    };
}

/// Attention of packed sequences of different lengths.
///
/// * `q` - `[total_q, heads, head_dim]`
/// * `k`, `v` - `[total_k, kv_heads, head_dim]`
/// * `seqlens_q`, `seqlens_k` - `[batch + 1]` cumulative lengths, U32 or I32: 0, the first length,
///   the sum of the first two, ...
/// * `max_seqlen_q`, `max_seqlen_k` - no sequence is longer
/// * `causal` - the last query of each sequence is on the diagonal with its last key
///
/// The result is `[total_q, heads, head_dim]`.
///
/// ```
#[doc = packed!()]
/// let out = flash_attn_varlen(&q, &k, &v, &seqlens_q, &seqlens_k, 2, 2, 1., true)?;
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [2., 5., 6.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flash_attn_varlen(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_varlen_windowed(
        q,
        k,
        v,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        None,
        causal.then_some(0),
    )
}

/// [`flash_attn_varlen`] with the window of [`crate::flash_attn_windowed`].
///
/// ```
#[doc = packed!()]
/// let (left, right) = (Some(0), Some(0)); // its own key alone
/// let out = flash_attn_varlen_windowed(&q, &k, &v, &seqlens_q, &seqlens_k, 2, 2, 1., left, right)?;
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [3., 5., 7.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flash_attn_varlen_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let lengths = Lengths::new(seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k);
    options(None, softmax_scale, window_size_left, window_size_right, 0.)
        .run_varlen(q, k, v, &lengths)
}

/// [`flash_attn_varlen`] with the ALiBi of [`crate::flash_attn_alibi`].
///
/// ```
#[doc = packed!()]
/// let slopes = Tensor::zeros(1, DType::F32, cpu)?;
/// let out = flash_attn_varlen_alibi(&q, &k, &v, &slopes, &seqlens_q, &seqlens_k, 2, 2, 1., true)?;
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [2., 5., 6.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flash_attn_varlen_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_varlen_alibi_windowed(
        q,
        k,
        v,
        alibi_slopes,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        None,
        causal.then_some(0),
    )
}

/// [`flash_attn_varlen_windowed`] with the ALiBi of [`crate::flash_attn_alibi`].
///
/// ```
#[doc = packed!()]
/// let slopes = Tensor::zeros(1, DType::F32, cpu)?;
/// let out = flash_attn_varlen_alibi_windowed(
///     &q, &k, &v, &slopes, &seqlens_q, &seqlens_k, 2, 2, 1., None, Some(0),
/// )?;
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [2., 5., 6.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flash_attn_varlen_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_varlen_alibi_windowed_softcap(
        q,
        k,
        v,
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
/// first.
///
/// ```
#[doc = packed!()]
/// let out = flash_attn_varlen_alibi_windowed_softcap(
///     &q, &k, &v, None, &seqlens_q, &seqlens_k, 2, 2, 1., None, Some(0), 30.,
/// )?;
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [2., 5., 6.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flash_attn_varlen_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let lengths = Lengths::new(seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k);
    options(
        alibi_slopes,
        softmax_scale,
        window_size_left,
        window_size_right,
        softcap,
    )
    .run_varlen(q, k, v, &lengths)
}

/// [`flash_attn_varlen_windowed`] over a paged KV cache.
///
/// * `q` - `[total_q, heads, head_dim]`
/// * `k`, `v` - `[num_pages, page_block_size, kv_heads, head_dim]`; any page size does
/// * `seqlens_k` - as of packed keys: the differences are the lengths
/// * `block_table` - `[batch, max_pages]` of U32 or I32: the pages of each sequence
/// * `mm_prefix_ranges` - `[batch, max_ranges, 2]` of I32: where a query and a key lie both between
///   a range's first position and before its last, the window does not mask. The mask is made on
///   the host, `max_seqlen_q` by `max_seqlen_k` bytes a sequence.
/// * `softcap` - scores become `softcap * tanh(score / softcap)`
///
/// There is no backward pass over pages.
///
/// ```
#[doc = packed!()]
/// let pages = |x: Tensor| x.reshape((2, 2, 1, ())); // two pages of two rows
/// let table = Tensor::new(&[[0u32], [1]], cpu)?;
/// let out = flash_attn_varlen_paged_windowed(
///     &q, &pages(k)?, &pages(v)?, &seqlens_q, &seqlens_k, &table, None, 2, 2, 1., None, Some(0), 2, None,
/// )?;
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [2., 5., 6.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flash_attn_varlen_paged_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    mm_prefix_ranges: Option<&Tensor>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    page_block_size: usize,
    softcap: Option<f32>,
) -> Result<Tensor> {
    let lengths =
        Lengths::new(seqlens_q, seqlens_k, max_seqlen_q, max_seqlen_k).block_table(block_table);
    lengths.check_ranks(q, k, v)?;
    if k.dim(1)? != page_block_size {
        bail!(
            "page_block_size is {page_block_size}, but k has shape {:?}",
            k.dims()
        )
    }
    let softcap = softcap.unwrap_or(0.);
    let no_window = window_size_left.is_none() && window_size_right.is_none();
    let Some(ranges) = mm_prefix_ranges.filter(|_| !no_window) else {
        let (left, right) = (window_size_left, window_size_right);
        return options(None, softmax_scale, left, right, softcap).run_varlen(q, k, v, &lengths);
    };
    let mask = lengths.windows_with_ranges(ranges, window_size_left, window_size_right)?;
    options(None, softmax_scale, None, None, softcap)
        .mask(&mask)
        .run_varlen(q, k, v, &lengths)
}

//! `flash_attn_varlen` and its forms: packed sequences of different lengths, and pages.
#![allow(clippy::too_many_arguments)]

use candle_core::{bail, Result, Tensor};

use crate::dense::options;
use crate::lengths::Lengths;

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

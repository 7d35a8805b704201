//! Keys and values in pages.

use super::prefix::Ranges;
use super::varlen::Lengths;
use super::{limited, Place};
use crate::{Error, Forward, Result, Tensor, TensorMut};

/// [`flash_attn_varlen_windowed`](super::flash_attn_varlen_windowed) over a paged KV cache.
///
/// * `q`, `out` - `[1, total_q, heads, head_dim]`
/// * `k`, `v` - `[num_pages, page_block_size, kv_heads, head_dim]`; any page size does
/// * `seqlens_q`, `seqlens_k` - as of packed keys: the differences are the lengths
/// * `block_table` - `[batch, max_pages]` of `i32` ([`Tensor::two_dims`]): the pages of each
///   sequence
/// * `mm_prefix_ranges` - `[1, batch, max_ranges, 2]` of `i32`: where a query and a key lie both at
///   or behind a range's first position and before its last, the window does not mask. `None` is
///   no range.
/// * `softcap` - scores become `softcap * tanh(score / softcap)`; `None` and 0 are off
///
/// With ranges and a window the mask is made on the host, `max_seqlen_q` by `max_seqlen_k` bytes a
/// sequence. The call then waits for all work of the device, before and after its own, and cannot
/// be captured in a graph.
///
/// # Errors
///
/// Those of [`flash_attn_varlen_windowed`](super::flash_attn_varlen_windowed), and
/// `InvalidArgument` where `page_block_size` is not k's, the block table or the ranges have another
/// shape or dtype, or, on the CPU, a page does not exist. [`Error::OutOfMemory`]: there is no room
/// for the mask.
///
/// ```
#[doc = packed!()]
/// let page = [2, 2, 1, 1]; // two pages of two rows
/// let (k, v) = (Tensor::bshd(&[0f32; 4], page)?, Tensor::bshd(&[1f32, 3., 5., 7.], page)?);
/// let block_table = Tensor::two_dims(&[1i32, 0], 2, 1)?; // the first sequence has the last page
/// let ranges = Tensor::row_major(&[0i32, 0, 0, 2], [1, 2, 1, 2])?; // none, all of the second
/// flash_attn_varlen_paged_windowed(
///     place, q, k, v, to, seqlens_q, seqlens_k, block_table, Some(ranges), 2, 2, 1., None, Some(0),
///     2, None,
/// )?;
/// assert_eq!(out, [6., 2., 2.]); // without the ranges 6, 1, 2
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn flash_attn_varlen_paged_windowed(
    place: Place<'_>,
    q: Tensor<'_>,
    k: Tensor<'_>,
    v: Tensor<'_>,
    out: TensorMut<'_>,
    seqlens_q: Tensor<'_>,
    seqlens_k: Tensor<'_>,
    block_table: Tensor<'_>,
    mm_prefix_ranges: Option<Tensor<'_>>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    page_block_size: usize,
    softcap: Option<f32>,
) -> Result<()> {
    if k.shape()[1] != page_block_size {
        let shape = k.shape();
        return Err(Error::InvalidArgument(format!(
            "page_block_size is {page_block_size}, but k has shape {shape:?}"
        )));
    }
    let lengths = Lengths {
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
    };
    let window = limited([window_size_left, window_size_right], max_seqlen_k);
    let call = Forward::new(q, k, v, out).block_table(block_table);
    let attention = |window| place.attention(softmax_scale, window, softcap.unwrap_or(0.));
    match mm_prefix_ranges {
        Some(ranges) if window != [None, None] => {
            let mask = Ranges::new(place.device, lengths, ranges)?.mask(window)?;
            // The mask's memory is freed behind the call, which waits for the device.
            lengths.run(place, attention([None, None]), call.keep_mask(mask.view()?))
        }
        _ => lengths.run(place, attention(window), call),
    }
}

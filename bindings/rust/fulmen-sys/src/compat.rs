//! The C entry that users of Rust attention kernels know: fp16, `[batch_size, seq_len, num_heads,
//! head_dim]`, contiguous, on the default device ([`crate::fulmen_set_default_device`], else
//! `$FULMEN_DEVICE`, else the CPU).
//!
//! `fulmen_c.h` has the whole contract. New programs have more of the crate `fulmen`.
//!
//! ```
//! use fulmen_sys::compat::{flash_attn_forward, FlashAttnParams};
//!
//! let params = FlashAttnParams {
//!     batch_size: 1,
//!     seq_len: 4,
//!     num_heads: 2,
//!     head_dim: 8,
//!     is_causal: false,
//!     softmax_scale: 0., // 1 / sqrt(head_dim)
//! };
//! let q = [0u16; 64]; // the bits of fp16: zeros
//! let v = [0x4000u16; 64]; // twos
//! let mut out = [0u16; 64];
//! let (q, v) = (q.as_ptr().cast(), v.as_ptr().cast());
//! // SAFETY: all tensors have 1 * 4 * 2 * 8 elements.
//! let status = unsafe { flash_attn_forward(q, q, v, out.as_mut_ptr().cast(), &params) };
//! assert_eq!((status, out), (0, [0x4000; 64])); // the mean of values that are all 2
//! ```

/// The parameters of both calls; `usize` fields, `repr(C)`. A `softmax_scale` of 0 is `1 /
/// sqrt(head_dim)`.
pub use crate::bindings::FlashAttnParams;

/// The gradients of [`flash_attn_forward`]; a null `dq`, `dk` or `dv` is not computed. Returns a
/// [`crate::fulmen_status`].
///
/// # Safety
///
/// Every pointer that is not null is memory of the device with as many fp16 elements as `params`
/// says, and no other code uses what is written.
pub use crate::bindings::flash_attn_backward;

/// Attention of q over k and v, into out. Returns a [`crate::fulmen_status`];
/// [`crate::fulmen_last_error`] has the sentence.
///
/// # Safety
///
/// Every pointer is memory of the device with as many fp16 elements as `params` says, and no other
/// code uses what is written.
pub use crate::bindings::flash_attn_forward;

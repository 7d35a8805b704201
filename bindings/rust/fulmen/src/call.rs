//! The tensors of one call.

use std::marker::PhantomData;
use std::mem::{size_of, zeroed};

use fulmen_sys as sys;

use crate::tensor::{Tensor, TensorMut};

/// All absent: zeros, as `fulmen_tensors_init` has it. Two kilobytes are written once here, and three
/// times by the C function and its result's way back.
#[inline]
fn tensors() -> sys::fulmen_tensors {
    // SAFETY: zero is a value of each field.
    let mut tensors: sys::fulmen_tensors = unsafe { zeroed() };
    tensors.struct_size = size_of::<sys::fulmen_tensors>();
    tensors
}

/// What [`crate::Attention`] and [`crate::Plan`] take: a [`Forward`] or a [`Backward`] call.
pub trait Call: sealed::Sealed {}

pub(crate) mod sealed {
    use fulmen_sys as sys;

    pub trait Sealed {
        const BACKWARD: bool;
        fn raw(&self) -> &sys::fulmen_tensors;
    }
}

/// The forward pass: `out = softmax(scale * q k^T + bias, masked) v`.
///
/// | tensor | shape | type |
/// |---|---|---|
/// | q, out | `[batch, seqlen_q, heads, head_dim]`, out with v's head_dim | `f32`, `f16` or `bf16` |
/// | k, v | `[batch, seqlen_k, kv_heads, head_dim]`; kv_heads divides heads | q's |
///
/// A call may be run again and again: its inputs are read anew each time.
///
/// ```
/// use fulmen::{Attention, Forward, Tensor, TensorMut};
///
/// let shape = [2, 5, 4, 16];
/// let (q, k, v) = (vec![0.5f32; 640], vec![0.25; 640], vec![2.; 640]);
/// let (mut out, mut lse) = (vec![0f32; 640], vec![0f32; 2 * 4 * 5]);
/// let mut call = Forward::new(
///     Tensor::bshd(&q, shape)?,
///     Tensor::bshd(&k, shape)?,
///     Tensor::bshd(&v, shape)?,
///     TensorMut::bshd(&mut out, shape)?,
/// )
/// .lse(TensorMut::bhqk(&mut lse, [2, 4, 5, 1])?);
/// Attention::default().forward(&mut call)?;
/// assert!((out[0] - 2.).abs() < 1e-6); // the mean of values that are all 2
/// assert!((lse[0] - (0.5 + 5f32.ln())).abs() < 1e-5);
/// # Ok::<(), fulmen::Error>(())
/// ```
#[derive(Debug)]
pub struct Forward<'a> {
    raw: sys::fulmen_tensors,
    memory: PhantomData<&'a mut [u8]>,
}

/// The backward pass: gradients of q, k, v, an additive bias and sinks, of which at least one is
/// asked for.
///
/// ```
/// use fulmen::{Attention, Backward, Forward, Tensor, TensorMut};
///
/// let (shape, rows) = ([1, 3, 2, 8], [1, 2, 3, 1]);
/// let q: Vec<f32> = (0..48).map(|i| (i % 7) as f32 / 7.).collect();
/// let (mut out, mut lse, mut dq) = (vec![0f32; 48], vec![0f32; 6], vec![0f32; 48]);
/// let dout = vec![1f32; 48];
/// let view = Tensor::bshd(&q, shape)?;
/// let attention = Attention::default();
/// attention.forward(
///     &mut Forward::new(view, view, view, TensorMut::bshd(&mut out, shape)?)
///         .lse(TensorMut::bhqk(&mut lse, rows)?),
/// )?;
/// attention.backward(
///     &mut Backward::new(
///         view,
///         view,
///         view,
///         Tensor::bshd(&out, shape)?,
///         Tensor::bhqk(&lse, rows)?,
///         Tensor::bshd(&dout, shape)?,
///     )
///     .dq(TensorMut::bshd(&mut dq, shape)?),
/// )?;
/// assert!(dq.iter().all(|x| x.is_finite()));
/// # Ok::<(), fulmen::Error>(())
/// ```
#[derive(Debug)]
pub struct Backward<'a> {
    raw: sys::fulmen_tensors,
    memory: PhantomData<&'a mut [u8]>,
}

impl sealed::Sealed for Forward<'_> {
    const BACKWARD: bool = false;
    fn raw(&self) -> &sys::fulmen_tensors {
        &self.raw
    }
}

impl sealed::Sealed for Backward<'_> {
    const BACKWARD: bool = true;
    fn raw(&self) -> &sys::fulmen_tensors {
        &self.raw
    }
}

impl Call for Forward<'_> {}
impl Call for Backward<'_> {}

// SAFETY: a call is as the views that it is made of.
unsafe impl Send for Forward<'_> {}
unsafe impl Sync for Forward<'_> {}
// SAFETY: the same.
unsafe impl Send for Backward<'_> {}
unsafe impl Sync for Backward<'_> {}

/// Optional inputs of both passes.
macro_rules! inputs {
    ($call:ident, $($(#[$doc:meta])* $name:ident),*) => {
        impl<'a> $call<'a> {
            $(
                $(#[$doc])*
                #[inline]
                #[must_use]
                pub fn $name(mut self, tensor: Tensor<'a>) -> Self {
                    self.raw.$name = tensor.raw;
                    self
                }
            )*

            /// Which random numbers dropout takes: the same pair drops the same elements, forward
            /// and backward, on every device. See [`crate::Attention::dropout_mask`].
            #[must_use]
            pub fn dropout_numbers(mut self, seed: u64, offset: u64) -> Self {
                self.raw.dropout_seed = seed;
                self.raw.dropout_offset = offset;
                self
            }
        }
    };
}

macro_rules! both {
    ($($call:ident),*) => {
        $(inputs!(
            $call,
            /// Added to the scores: `[batch, heads, seqlen_q, seqlen_k]` of any float, of which each
            /// dim but the last may be 1.
            bias,
            /// `bool` or `u8` of the bias's shape: a key is attended where it is not 0.
            keep_mask,
            /// `[heads]` of `f32` ([`Tensor::one_dim`]), or `[batch, 1, 1, heads]`: `slope *
            /// |distance|` is subtracted from a score.
            alibi_slopes,
            /// `[heads]` of `f32`: one more score in the denominator, without a value.
            sinks,
            /// `[batch + 1]` of `i32`: q, and all of its shape, are packed, `[1, total_q, heads,
            /// head_dim]`, and lse is `[1, heads, total_q, 1]`. Sequence `n` is rows `cu[n]` to
            /// `cu[n + 1] - 1`. [`crate::AttentionBuilder::max_seqlen_q`] is needed.
            cu_seqlens_q,
            /// The same of k and v. Beside a block table its differences are the lengths.
            cu_seqlens_k,
            /// `[batch]` of `i32`: where the used rows of padded or paged k and v end. Forward
            /// alone.
            seqlens_k,
            /// `[batch, max_pages]` of `i32` ([`Tensor::two_dims`]): k and v are `[num_pages,
            /// page_size, kv_heads, head_dim]`. Forward alone.
            block_table,
            /// `[batch]` of `i32`: where the used rows of padded or paged k and v begin. Forward
            /// alone.
            leftpad_k,
            /// `f32`, `[1 or batch, 1, 1, 1 or kv_heads]`: factors of k's numbers. No kernel reads
            /// them yet: [`crate::Error::Unsupported`].
            k_scale,
            /// The same of v.
            v_scale,
            /// A block mask, of [`crate::AttentionBuilder::mask_block`]: `[1 or batch, 1 or heads, 1,
            /// blocks of queries]` of `i32`, how many blocks of keys each attends.
            kv_num_blocks,
            /// `[1 or batch, 1 or heads, blocks of queries, blocks of keys]` of `i32`: which.
            kv_indices,
            /// The same of blocks that `mask_mod` does not mask.
            full_kv_num_blocks,
            /// Which these are.
            full_kv_indices
        );)*
    };
}

both!(Forward, Backward);

impl<'a> Forward<'a> {
    /// Attention of q over k and v, into out.
    #[inline]
    pub fn new(q: Tensor<'a>, k: Tensor<'a>, v: Tensor<'a>, out: TensorMut<'a>) -> Self {
        let mut raw = tensors();
        raw.q = q.raw;
        raw.k = k.raw;
        raw.v = v.raw;
        raw.out = out.raw;
        Self {
            raw,
            memory: PhantomData,
        }
    }

    /// The result takes q's place. Baselines and user backends refuse it.
    ///
    /// ```
    /// use fulmen::{Attention, Forward, Tensor, TensorMut};
    ///
    /// let (mut q, k, v) = (vec![0.5f32; 64], vec![0.25; 64], vec![2.; 64]);
    /// let kv = |data| Tensor::bshd(data, [1, 4, 1, 16]);
    /// let mut call = Forward::in_place(TensorMut::bshd(&mut q, [1, 4, 1, 16])?, kv(&k)?, kv(&v)?);
    /// Attention::default().forward(&mut call)?;
    /// assert!((q[0] - 2.).abs() < 1e-6);
    /// # Ok::<(), fulmen::Error>(())
    /// ```
    pub fn in_place(q: TensorMut<'a>, k: Tensor<'a>, v: Tensor<'a>) -> Self {
        Self::new(Tensor::of(q.raw), k, v, q)
    }

    /// Keeps the log-sum-exp of each row, `[batch, heads, seqlen_q, 1]` of `f32`. The backward pass
    /// reads it.
    #[inline]
    #[must_use]
    pub fn lse(mut self, lse: TensorMut<'a>) -> Self {
        self.raw.lse = lse.raw;
        self
    }
}

/// The gradients.
macro_rules! outputs {
    ($($(#[$doc:meta])* $name:ident),*) => {
        impl<'a> Backward<'a> {
            $(
                $(#[$doc])*
                #[inline]
                #[must_use]
                pub fn $name(mut self, gradient: TensorMut<'a>) -> Self {
                    self.raw.$name = gradient.raw;
                    self
                }
            )*
        }
    };
}

outputs!(
    /// The gradient of q, of its shape and type.
    dq,
    /// The gradient of k, of its shape and type.
    dk,
    /// The gradient of v, of its shape and type.
    dv,
    /// The gradient of the bias, `[batch, heads, seqlen_q, seqlen_k]` of any float: the sum over
    /// those of its dims that are 1.
    dbias,
    /// The gradient of the sinks, `[heads]` of `f32`.
    dsinks
);

impl<'a> Backward<'a> {
    /// The inputs of the forward pass, its results, and the loss's gradient by out.
    #[inline]
    pub fn new(
        q: Tensor<'a>,
        k: Tensor<'a>,
        v: Tensor<'a>,
        out: Tensor<'a>,
        lse: Tensor<'a>,
        dout: Tensor<'a>,
    ) -> Self {
        let mut raw = tensors();
        raw.q = q.raw;
        raw.k = k.raw;
        raw.v = v.raw;
        raw.out = out.raw;
        raw.lse = lse.raw;
        raw.dout = dout.raw;
        Self {
            raw,
            memory: PhantomData,
        }
    }

    /// The loss's gradient by lse, where it has one.
    #[must_use]
    pub fn dlse(mut self, dlse: Tensor<'a>) -> Self {
        self.raw.dlse = dlse.raw;
        self
    }
}

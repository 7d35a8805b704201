//! What a call computes beside q, k and v.

use std::ffi::CString;
use std::mem::{size_of, zeroed};
use std::ops::Deref;
use std::ptr;

use candle_core::{bail, DType, Layout, Result, Storage, Tensor};
use fulmen_sys as sys;

use crate::call::Place;
use crate::lengths::Lengths;
use crate::op;
use crate::pool;
use crate::problem::Problem;

/// Attention with all that the library offers of it, set up step by step.
///
/// The functions of this crate are shorthands for it. `docs/contract.md` of Fulmen has the formula.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fulmen::Attention;
///
/// let q = Tensor::randn(0f32, 1., (1, 5, 4, 16), &Device::Cpu)?;
/// let sinks = Tensor::zeros(4, candle_core::DType::F32, &Device::Cpu)?;
/// let out = Attention::new()
///     .causal()
///     .softcap(30.)
///     .sinks(&sinks)
///     .run(&q, &q, &q)?;
/// assert_eq!(out.dims(), [1, 5, 4, 16]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// Every option:
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # let q = Tensor::randn(0f32, 1., (1, 5, 4, 16), &Device::Cpu)?;
/// # let slopes = Tensor::zeros(4, candle_core::DType::F32, &Device::Cpu)?;
/// # let (mask, sinks) = (Tensor::ones((5, 5), candle_core::DType::U8, &Device::Cpu)?, slopes.clone());
/// let out = candle_fulmen::Attention::new()
///     .softmax_scale(0.25)
///     .window(Some(3), Some(1))
///     .softcap(30.)
///     .alibi_slopes(&slopes)
///     .mask(&mask)
///     .sinks(&sinks)
///     .dropout(0.1, 42, 0)
///     .kernel("cpu.reference.double")?
///     .num_threads(1)
///     .deterministic(true)
///     .run(&q, &q, &q)?;
/// # assert_eq!(out.dims(), [1, 5, 4, 16]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Attention {
    softmax_scale: Option<f32>,
    window_left: Option<usize>,
    window_right: Option<usize>,
    causal: bool,
    softcap: f32,
    alibi_slopes: Option<Tensor>,
    pub(crate) mask: Option<Tensor>,
    pub(crate) sinks: Option<Tensor>,
    dropout: f32,
    dropout_seed: u64,
    dropout_offset: u64,
    kernel: Option<CString>,
    num_threads: i32,
    any_order: bool,
}

impl Attention {
    /// Plain attention: the scale is `1 / sqrt(head_dim)`, every query attends every key.
    pub fn new() -> Self {
        Self::default()
    }

    /// The factor of `q . k`.
    pub fn softmax_scale(mut self, scale: f32) -> Self {
        self.softmax_scale = Some(scale);
        self
    }

    /// Keys behind a query are masked. The last query is on the diagonal with the last key.
    pub fn causal(mut self) -> Self {
        self.causal = true;
        self
    }

    /// The most keys that a query attends on the left and on the right of its own position.
    /// `None` is unlimited, and so is more than there are keys.
    pub fn window(mut self, left: Option<usize>, right: Option<usize>) -> Self {
        self.window_left = left;
        self.window_right = right;
        self
    }

    /// Scores become `softcap * tanh(score / softcap)`. 0 is off.
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.softcap = softcap;
        self
    }

    /// ALiBi slopes `[heads]` of F32: `slope * |distance|` is subtracted from a score.
    pub fn alibi_slopes(mut self, slopes: &Tensor) -> Self {
        self.alibi_slopes = Some(slopes.clone());
        self
    }

    /// A mask of at most four dims, `[batch, heads, seqlen_q, seqlen_k]` from the right, of which
    /// each but the last may be 1. F32, F16 and BF16 are added to the scores, and have a gradient.
    /// A mask of U8 has a key attended where it is not 0.
    pub fn mask(mut self, mask: &Tensor) -> Self {
        self.mask = Some(mask.clone());
        self
    }

    /// Attention sinks `[heads]` of F32: one more score in the denominator, without a value.
    pub fn sinks(mut self, sinks: &Tensor) -> Self {
        self.sinks = Some(sinks.clone());
        self
    }

    /// Elements of the softmax are dropped with this probability, below 1. The same seed and offset
    /// drop the same elements, on every device.
    pub fn dropout(mut self, probability: f32, seed: u64, offset: u64) -> Self {
        self.dropout = probability;
        self.dropout_seed = seed;
        self.dropout_offset = offset;
        self
    }

    /// Forces a kernel by its name, as `fulmen list` prints it; the backward pass chooses its own.
    pub fn kernel(mut self, name: &str) -> Result<Self> {
        match CString::new(name) {
            Ok(name) => self.kernel = Some(name),
            Err(_) => bail!("kernel is {name:?}; a name has no NUL"),
        }
        Ok(self)
    }

    /// The most threads on the CPU; 0, the default, is the size of rayon's pool, which attention
    /// runs on.
    pub fn num_threads(mut self, threads: usize) -> Self {
        self.num_threads = i32::try_from(threads).unwrap_or(i32::MAX);
        self
    }

    /// Whether gradients have the same bits in every run, the default. `false` allows kernels that
    /// add by atomics, which are faster on NVIDIA GPUs.
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.any_order = !deterministic;
        self
    }

    /// Attention of q `[batch, seqlen_q, heads, head_dim]` over k `[batch, seqlen_k, kv_heads,
    /// head_dim]` and v `[batch, seqlen_k, kv_heads, head_dim_v]`: `[batch, seqlen_q, heads,
    /// head_dim_v]`.
    ///
    /// Any strides do whose last dim is contiguous; nothing is copied.
    pub fn run(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let attention = self.for_padded([q.layout(), k.layout(), v.layout()])?;
        op::apply(Problem::new(attention, None), q, k, v)
    }

    /// Attention of sequences of different lengths; see [`Lengths`]. q is
    /// `[total_q, heads, head_dim]`, as is the result.
    pub fn run_varlen(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        lengths: &Lengths,
    ) -> Result<Tensor> {
        lengths.check_ranks(q, k, v)?;
        let attention = self.limited(lengths.max_seqlen_k);
        op::apply(Problem::new(attention, Some(lengths.clone())), q, k, v)
    }

    /// Checks the ranks of q, k and v that are not packed.
    pub(crate) fn for_padded(&self, layouts: [&Layout; 3]) -> Result<Self> {
        for (name, layout) in ["q", "k", "v"].into_iter().zip(layouts) {
            if layout.dims().len() != 4 {
                bail!(
                    "{name} has shape {:?}; flash_attn takes [batch, seqlen, heads, head_dim]",
                    layout.dims()
                )
            }
        }
        Ok(self.limited(layouts[1].dims()[1]))
    }

    /// A window beyond the longest sequence is none, as in candle-flash-attn.
    fn limited(&self, seqlen_k: usize) -> Self {
        let mut attention = self.clone();
        attention.window_left = self.window_left.filter(|&keys| keys <= seqlen_k);
        attention.window_right = self.window_right.filter(|&keys| keys <= seqlen_k);
        attention
    }

    /// The library's options. They point into `self`.
    pub(crate) fn options(&self) -> sys::fulmen_options {
        // SAFETY: zero is a value of each field, and the init function sets what is not 0.
        let mut options: sys::fulmen_options = unsafe { zeroed() };
        unsafe { sys::fulmen_options_init_sized(&mut options, size_of::<sys::fulmen_options>()) };
        if let Some(scale) = self.softmax_scale {
            options.softmax_scale = scale;
        }
        let window = |keys: Option<usize>| keys.map_or(-1, |n| i64::try_from(n).unwrap_or(-1));
        options.window_left = window(self.window_left);
        options.window_right = match self.causal {
            true => 0,
            false => window(self.window_right),
        };
        options.softcap = self.softcap;
        options.dropout = self.dropout;
        options.deterministic = !self.any_order;
        let threads = rayon::current_num_threads();
        options.num_threads = match self.num_threads {
            0 => i32::try_from(threads).unwrap_or(i32::MAX),
            most => most,
        };
        options.parallel_for = Some(pool::parallel_for);
        options.kernel = self.kernel.as_ref().map_or(ptr::null(), |k| k.as_ptr());
        options
    }

    pub(crate) fn dropout_numbers(&self) -> (u64, u64) {
        (self.dropout_seed, self.dropout_offset)
    }

    pub(crate) fn has_bias(&self) -> bool {
        self.mask.as_ref().is_some_and(|m| m.dtype() != DType::U8)
    }

    /// The optional inputs, with their memory held.
    pub(crate) fn operands(&self) -> Vec<Operand<'_>> {
        let mut operands = Vec::new();
        if let Some(mask) = &self.mask {
            operands.push(if self.has_bias() {
                Operand::new("mask", mask, |t| &mut t.bias)
            } else {
                Operand::new("mask", mask, |t| &mut t.keep_mask)
            });
        }
        if let Some(slopes) = &self.alibi_slopes {
            let place: Place = |t| &mut t.alibi_slopes;
            operands.push(Operand::new("alibi_slopes", slopes, place));
        }
        if let Some(sinks) = &self.sinks {
            operands.push(Operand::new("sinks", sinks, |t| &mut t.sinks));
        }
        operands
    }
}

/// An input that the operation holds as a tensor.
pub(crate) struct Operand<'a> {
    pub(crate) name: &'static str,
    /// The lock of the storage, whose type differs between candle's versions.
    pub(crate) storage: Box<dyn Deref<Target = Storage> + 'a>,
    pub(crate) layout: &'a Layout,
    pub(crate) place: Place,
}

impl<'a> Operand<'a> {
    pub(crate) fn new(name: &'static str, tensor: &'a Tensor, place: Place) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Self {
            name,
            storage: Box::new(storage),
            layout,
            place,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Attention;

    #[test]
    fn causal_holds_beside_a_window_in_either_order() {
        let first = Attention::new().causal().window(Some(4), None);
        let last = Attention::new().window(Some(4), Some(9)).causal();
        for attention in [first, last] {
            let options = attention.options();
            assert_eq!((options.window_left, options.window_right), (4, 0));
        }
    }
}

//! `flash_attn` and its forms: sequences of one length.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

use crate::attention::Attention;
use crate::op;

/// The examples' tensors: all scores are 0, so a result is the mean of the values that a query
/// attends.
macro_rules! tensors {
    () => {
        "# use candle_core::{Device, Tensor};
# use candle_fulmen::*;
# let cpu = &Device::Cpu;
let q = Tensor::zeros((1, 2, 1, 8), candle_core::DType::F32, cpu)?; // two queries, two keys
let v = Tensor::new(&[1f32, 3.], cpu)?.reshape((1, 2, 1, 1))?;"
    };
}

/// The operation of candle-flash-attn, for callers that build it themselves and apply it by
/// `apply_op3`.
///
/// The functions of this crate keep the log-sum-exp for the backward pass; this one computes it
/// again.
///
/// ```
#[doc = tensors!()]
/// let causal = FlashAttn {
///     softmax_scale: 1.,
///     alibi_slopes: None,
///     window_size_left: None,
///     window_size_right: Some(0),
///     softcap: None,
/// };
/// let out = q.apply_op3(&q, &v, causal)?;
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [1., 2.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FlashAttn {
    /// The factor of `q . k`.
    pub softmax_scale: f32,
    /// `[heads]` of F32.
    pub alibi_slopes: Option<Tensor>,
    /// The most keys on the left of a query's position.
    pub window_size_left: Option<usize>,
    /// The most keys on the right of a query's position; `Some(0)` is causal.
    pub window_size_right: Option<usize>,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
}

impl FlashAttn {
    fn attention(&self) -> Attention {
        options(
            self.alibi_slopes.as_ref(),
            self.softmax_scale,
            self.window_size_left,
            self.window_size_right,
            self.softcap.unwrap_or(0.),
        )
    }
}

impl CustomOp3 for FlashAttn {
    fn name(&self) -> &'static str {
        "flash-attn"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_l: &Layout,
        k: &CpuStorage,
        k_l: &Layout,
        v: &CpuStorage,
        v_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let attention = self.attention().for_padded([q_l, k_l, v_l])?;
        op::forward_alone(attention, [(q, q_l), (k, k_l), (v, v_l)])
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_l: &Layout,
        k: &CudaStorage,
        k_l: &Layout,
        v: &CudaStorage,
        v_l: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let attention = self.attention().for_padded([q_l, k_l, v_l])?;
        op::forward_alone(attention, [(q, q_l), (k, k_l), (v, v_l)])
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        out: &Tensor,
        dout: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let attention = self
            .attention()
            .for_padded([q.layout(), k.layout(), v.layout()])?;
        op::gradients_alone(attention, [q, k, v, out, dout])
    }
}

fn causal_window(causal: bool) -> Option<usize> {
    causal.then_some(0)
}

pub(crate) fn options(
    alibi_slopes: Option<&Tensor>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Attention {
    let attention = Attention::new()
        .softmax_scale(softmax_scale)
        .window(window_size_left, window_size_right)
        .softcap(softcap);
    match alibi_slopes {
        Some(slopes) => attention.alibi_slopes(slopes),
        None => attention,
    }
}

/// `softmax(softmax_scale * q k^T) v` without its matrix of scores.
///
/// * `q` - `[batch, seqlen_q, heads, head_dim]` of F32, F16 or BF16
/// * `k`, `v` - `[batch, seqlen_k, kv_heads, head_dim]`; `kv_heads` divides `heads`
/// * `causal` - masks the keys behind a query; the last query is on the diagonal with the last key
///
/// The result is `[batch, seqlen_q, heads, head_dim]`. It is in candle's graph where an argument
/// is, and `backward()` gives the gradients.
///
/// ```
#[doc = tensors!()]
/// let out = flash_attn(&q, &q, &v, 1., true)?;
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [1., 2.]); // of one key, of two
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flash_attn(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_windowed(q, k, v, softmax_scale, None, causal_window(causal))
}

/// [`flash_attn`] where a query attends the keys from `window_size_left` before to
/// `window_size_right` behind its own position. `None` is unlimited; `None` and `Some(0)` are
/// causal.
///
/// ```
#[doc = tensors!()]
/// let out = flash_attn_windowed(&q, &q, &v, 1., Some(0), Some(0))?; // its own key alone
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [1., 3.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flash_attn_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    options(None, softmax_scale, window_size_left, window_size_right, 0.).run(q, k, v)
}

/// [`flash_attn`] with ALiBi: `alibi_slopes`, `[heads]` of F32, times the distance is subtracted
/// from a score.
///
/// ```
#[doc = tensors!()]
/// let slopes = Tensor::new(&[1e3f32], cpu)?; // so steep that the nearest key is all that counts
/// let out = flash_attn_alibi(&q, &q, &v, &slopes, 1., false)?;
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [1., 3.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flash_attn_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let right = causal_window(causal);
    flash_attn_alibi_windowed(q, k, v, alibi_slopes, softmax_scale, None, right)
}

/// [`flash_attn_windowed`] with the ALiBi of [`flash_attn_alibi`].
///
/// ```
#[doc = tensors!()]
/// let slopes = Tensor::zeros(1, candle_core::DType::F32, cpu)?;
/// let out = flash_attn_alibi_windowed(&q, &q, &v, &slopes, 1., None, Some(0))?;
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [1., 2.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flash_attn_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let slopes = Some(alibi_slopes);
    options(
        slopes,
        softmax_scale,
        window_size_left,
        window_size_right,
        0.,
    )
    .run(q, k, v)
}

/// [`flash_attn_alibi_windowed`] where scores become `softcap * tanh(score / softcap)` first.
///
/// ```
#[doc = tensors!()]
/// let out = flash_attn_alibi_windowed_softcap(&q, &q, &v, None, 1., None, Some(0), 30.)?;
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [1., 2.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    options(
        alibi_slopes,
        softmax_scale,
        window_size_left,
        window_size_right,
        softcap,
    )
    .run(q, k, v)
}

/// [`flash_attn`] with a mask; see [`Attention::mask`] for its shapes and dtypes.
///
/// ```
#[doc = tensors!()]
/// let mask = Tensor::new(&[[0u8, 1]], cpu)?; // every query attends the second key
/// let out = flash_attn_with_mask(&q, &q, &v, Some(&mask), 1., false)?;
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, [3., 3.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flash_attn_with_mask(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let attention = options(None, softmax_scale, None, causal_window(causal), 0.);
    match mask {
        Some(mask) => attention.mask(mask),
        None => attention,
    }
    .run(q, k, v)
}

/// [`flash_attn_windowed`] with attention sinks, `[heads]` of F32: one more score in the
/// denominator.
///
/// ```
#[doc = tensors!()]
/// let sinks = Tensor::zeros(1, candle_core::DType::F32, cpu)?; // a third score of 0
/// let out = flash_attn_with_sinks(&q, &q, &v, &sinks, 1., None, None)?;
/// let out = out.flatten_all()?.to_vec1::<f32>()?;
/// assert!((out[0] - 4. / 3.).abs() < 1e-6);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flash_attn_with_sinks(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    sinks: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    options(None, softmax_scale, window_size_left, window_size_right, 0.)
        .sinks(sinks)
        .run(q, k, v)
}

/// [`flash_attn`] with dropout of the softmax. The backward pass drops the same elements; give each
/// call of a training another `offset`.
///
/// ```
#[doc = tensors!()]
/// let out = flash_attn_with_dropout(&q, &q, &v, 1., false, 0.5, 42, 0)?;
/// let again = flash_attn_with_dropout(&q, &q, &v, 1., false, 0.5, 42, 0)?;
/// assert_eq!(out.flatten_all()?.to_vec1::<f32>()?, again.flatten_all()?.to_vec1::<f32>()?);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_with_dropout(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    causal: bool,
    dropout: f32,
    seed: u64,
    offset: u64,
) -> Result<Tensor> {
    options(None, softmax_scale, None, causal_window(causal), 0.)
        .dropout(dropout, seed, offset)
        .run(q, k, v)
}

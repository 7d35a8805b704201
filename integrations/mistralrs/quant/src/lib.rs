//! The names that mistralrs-core's attention takes from mistralrs-quant, by plain operations of candle.

use candle_core::{Result, Tensor, D};

pub struct MatMul;

impl MatMul {
    pub fn matmul(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        a.contiguous()?.matmul(&b.contiguous()?)
    }

    pub fn matmul_affine_mul(&self, a: &Tensor, b: &Tensor, factor: f64) -> Result<Tensor> {
        self.matmul(a, b)? * factor
    }
}

/// A score of each head more, `[heads]`, which has no value.
pub fn softmax_with_sinks(
    scores: &Tensor,
    sinks: &Tensor,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let scores = match mask {
        Some(mask) => scores.broadcast_add(mask)?,
        None => scores.clone(),
    };
    let (batch, heads, rows, keys) = scores.dims4()?;
    let sinks = sinks
        .reshape((1, heads, 1, 1))?
        .broadcast_as((batch, heads, rows, 1))?;
    let all = Tensor::cat(&[&scores, &sinks.to_dtype(scores.dtype())?], D::Minus1)?;
    candle_nn::ops::softmax_last_dim(&all.contiguous()?)?
        .narrow(D::Minus1, 0, keys)?
        .contiguous()
}

pub mod distributed {
    pub fn use_nccl() -> bool {
        false
    }
}

pub mod cublaslt {
    use candle_core::Device;

    pub struct Controller;
    pub static CUBLASLT_CONTROLLER: Controller = Controller;

    impl Controller {
        pub fn get_for_device(&self, _: &Device) -> Option<()> {
            None
        }
    }
}

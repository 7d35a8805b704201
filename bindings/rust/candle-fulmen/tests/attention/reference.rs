//! Attention by candle's own operations, in F32.

use candle_core::{DType, Device, Result, Tensor, Var, D};

use crate::models::Numbers;

impl Numbers {
    /// The next tensor, in candle's graph.
    pub fn var(&mut self, dims: &[usize]) -> Var {
        Var::from_tensor(&self.tensor(dims)).unwrap()
    }
}

/// What a call has beside q, k and v.
#[derive(Clone, Default)]
pub struct Options {
    pub scale: f64,
    pub left: Option<usize>,
    pub right: Option<usize>,
    pub softcap: f64,
    pub slopes: Option<Tensor>,
    /// F32, added; broadcast to `[batch, heads, seqlen_q, seqlen_k]`.
    pub bias: Option<Tensor>,
    pub sinks: Option<Tensor>,
}

/// `[batch, seqlen_q, heads, head_dim_v]` of F32, in candle's graph.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, options: &Options) -> Result<Tensor> {
    let (batch, seqlen_q, heads, _) = q.dims4()?;
    let (_, seqlen_k, kv_heads, _) = k.dims4()?;
    let by_head = |t: &Tensor| t.to_dtype(DType::F32)?.transpose(1, 2)?.contiguous();
    let of_query_heads = |t: &Tensor| {
        let index: Vec<u32> = (0..heads)
            .map(|h| (h / (heads / kv_heads)) as u32)
            .collect();
        by_head(t)?.index_select(&Tensor::new(index, t.device())?, 1)
    };
    let (q, k, v) = (by_head(q)?, of_query_heads(k)?, of_query_heads(v)?);
    let mut scores = (q.matmul(&k.t()?.contiguous()?)? * options.scale)?;
    if options.softcap != 0. {
        scores = ((scores / options.softcap)?.tanh()? * options.softcap)?;
    }
    if let Some(bias) = &options.bias {
        scores = scores.broadcast_add(&bias.to_dtype(DType::F32)?)?;
    }
    if let Some(slopes) = &options.slopes {
        let distance = by_position(seqlen_q, seqlen_k, |i, j| (i - j).abs() as f32)?;
        let penalty = slopes
            .reshape((heads, 1, 1))?
            .broadcast_mul(&distance.unsqueeze(0)?)?;
        scores = scores.broadcast_sub(&penalty)?;
    }
    let masked = by_position(seqlen_q, seqlen_k, |i, j| {
        let left = options.left.is_some_and(|n| j < i - n as i64);
        let right = options.right.is_some_and(|n| j > i + n as i64);
        match left || right {
            true => f32::NEG_INFINITY,
            false => 0.,
        }
    })?;
    scores = scores.broadcast_add(&masked)?;
    if let Some(sinks) = &options.sinks {
        let column = sinks
            .reshape((1, heads, 1, 1))?
            .broadcast_as((batch, heads, seqlen_q, 1))?
            .contiguous()?;
        scores = Tensor::cat(&[&scores, &column], 3)?;
    }
    let probabilities = candle_nn::ops::softmax(&scores, D::Minus1)?;
    let probabilities = probabilities.narrow(3, 0, seqlen_k)?.contiguous()?;
    probabilities.matmul(&v)?.transpose(1, 2)
}

/// A value for each query and key; the last query is on the diagonal with the last key.
fn by_position(
    seqlen_q: usize,
    seqlen_k: usize,
    value: impl Fn(i64, i64) -> f32,
) -> Result<Tensor> {
    let diagonal = seqlen_k as i64 - seqlen_q as i64;
    let mut values = Vec::with_capacity(seqlen_q * seqlen_k);
    for i in 0..seqlen_q as i64 {
        values.extend((0..seqlen_k as i64).map(|j| value(i + diagonal, j)));
    }
    Tensor::from_vec(values, (seqlen_q, seqlen_k), &Device::Cpu)
}

pub fn values(tensor: &Tensor) -> Vec<f32> {
    let tensor = tensor.to_dtype(DType::F32).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Fails where an element differs by more than `tolerance`, or is NaN.
#[track_caller]
pub fn assert_close(what: &str, ours: &Tensor, reference: &Tensor, tolerance: f32) {
    assert_eq!(ours.dims(), reference.dims(), "{what}");
    for (at, (x, y)) in values(ours).into_iter().zip(values(reference)).enumerate() {
        let close = (x - y).abs() <= tolerance;
        assert!(close, "{what}: element {at} is {x}, the reference has {y}");
    }
}

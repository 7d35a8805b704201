//! A call of mistralrs-core's attention, and what is right.

use candle_core::{DType, Device, Result, Tensor};

use crate::attention::{Sdpa, SdpaParams};

pub struct Given {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub mask: Option<Tensor>,
    pub params: SdpaParams,
    /// By `run_attention_noflash`, as MLA and vision models call it.
    pub without_flash: bool,
}

fn numbers(x: &Tensor) -> Result<Vec<f64>> {
    x.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

impl Given {
    pub fn run(&self) -> Result<Tensor> {
        let (q, k, v, mask) = (&self.q, &self.k, &self.v, self.mask.as_ref());
        if self.without_flash {
            return Sdpa.run_attention_noflash(q, k, v, mask, &self.params);
        }
        Sdpa.run_attention(q, k, v, mask, None, &self.params)
    }

    /// `[batch, heads, seqlen_q, head_dim_v]` of the same inputs; with a fault, of a call
    /// that is not the same.
    pub fn right(&self, fault: Option<&str>) -> Result<Vec<f64>> {
        let is = |name: &str| fault == Some(name);
        let (batch, heads, rows, dim) = self.q.dims4()?;
        let (_, kv_heads, keys, dim_v) = self.v.dims4()?;
        let [q, k, v] = [numbers(&self.q)?, numbers(&self.k)?, numbers(&self.v)?];
        let full = (batch, heads, rows, keys);
        let mask = match &self.mask {
            Some(mask) => {
                let mask = match *mask.dims() {
                    [x, _, _] if x == batch && !self.without_flash => mask.unsqueeze(1)?,
                    [x, m, n] if x == batch * heads => mask.reshape((batch, heads, m, n))?,
                    _ => mask.clone(),
                };
                numbers(&mask.broadcast_as(full)?.contiguous()?)?
            }
            None => vec![0.; batch * heads * rows * keys],
        };
        let sinks = self.params.sinks.as_ref().map(numbers).transpose()?;
        let softcap = self.params.softcap.filter(|_| sinks.is_none());
        let factor = if is("scale") { 1.01 } else { 1. };
        let scale = f64::from(self.params.softmax_scale) * factor;
        let mut out = Vec::with_capacity(batch * heads * rows * dim_v);
        for bh in 0..batch * heads {
            let kv = (bh / heads) * kv_heads + (bh % heads) / (heads / kv_heads);
            for row in 0..rows {
                let q = &q[(bh * rows + row) * dim..][..dim];
                let scores: Vec<f64> = (0..keys)
                    .map(|key| {
                        let k = &k[(kv * keys + key) * dim..][..dim];
                        let dot: f64 = q.iter().zip(k).map(|(a, b)| a * b).sum();
                        let score = softcap.map_or(dot * scale, |cap| {
                            let cap = f64::from(cap);
                            cap * (dot * scale / cap).tanh()
                        });
                        let added = mask[(bh * rows + row) * keys + key];
                        match added == f64::NEG_INFINITY {
                            true if is("mask") => score,
                            false if is("added") => score,
                            _ => score + added,
                        }
                    })
                    .collect();
                let sink = sinks
                    .as_ref()
                    .filter(|_| !is("sinks"))
                    .map(|x| x[bh % heads]);
                let most = scores
                    .iter()
                    .copied()
                    .chain(sink)
                    .fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                let sum: f64 = weights.iter().sum::<f64>() + sink.map_or(0., |s| (s - most).exp());
                for d in 0..dim_v {
                    let row = |key: usize| v[(kv * keys + key) * dim_v + d];
                    out.push(
                        weights
                            .iter()
                            .enumerate()
                            .map(|(n, w)| w * row(n))
                            .sum::<f64>()
                            / sum,
                    );
                }
            }
        }
        Ok(out)
    }
}

/// A mask of 0 and -inf: the last rows of a causal square, of which `window` keys are seen.
pub fn causal(rows: usize, keys: usize, window: usize, dtype: DType) -> Result<Tensor> {
    let mut mask = Vec::with_capacity(rows * keys);
    for row in 0..rows {
        let own = row + keys - rows;
        for key in 0..keys {
            let is_seen = key <= own && key + window > own;
            mask.push(if is_seen { 0f32 } else { f32::NEG_INFINITY });
        }
    }
    Tensor::from_vec(mask, (rows, keys), &Device::Cpu)?.to_dtype(dtype)
}

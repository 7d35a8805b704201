//! Calls as mistralrs-core's models make them.

use candle_core::{DType, Device, Result, Tensor};

use crate::attention::SdpaParams;
use crate::problem::{causal, Given};

#[derive(Clone, Copy)]
pub enum Mask {
    None,
    Causal,
    Window(usize),
    /// Random numbers of these dims, two or more.
    Added(&'static [usize]),
}

#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub dtype: DType,
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub rows: usize,
    pub keys: usize,
    pub dim: usize,
    pub mask: Mask,
    pub softcap: Option<f32>,
    pub has_sinks: bool,
    pub without_flash: bool,
    pub is_served: bool,
}

impl Case {
    pub fn given(&self) -> Result<Given> {
        let cpu = Device::Cpu;
        // As projections leave them: heads are a transposed dim.
        let make = |rows: usize, heads: usize, dim: usize| {
            Tensor::randn(0f32, 1., (self.batch, rows, heads, dim), &cpu)?
                .to_dtype(self.dtype)?
                .transpose(1, 2)
        };
        let mask = match self.mask {
            Mask::None => None,
            Mask::Causal => Some(causal(self.rows, self.keys, usize::MAX / 2, self.dtype)?),
            Mask::Window(window) => Some(causal(self.rows, self.keys, window, self.dtype)?),
            Mask::Added(dims) => Some(Tensor::randn(0f32, 1., dims, &cpu)?.to_dtype(self.dtype)?),
        };
        let sinks = match self.has_sinks {
            true => Some(Tensor::randn(0f32, 1., self.heads, &cpu)?.to_dtype(self.dtype)?),
            false => None,
        };
        Ok(Given {
            q: make(self.rows, self.heads, self.dim)?,
            k: make(self.keys, self.kv_heads, self.dim)?,
            v: make(self.keys, self.kv_heads, self.dim)?,
            mask,
            params: SdpaParams {
                n_kv_groups: self.heads / self.kv_heads,
                softcap: self.softcap,
                softmax_scale: 1. / (self.dim as f32).sqrt(),
                sliding_window: None,
                sinks,
            },
            without_flash: self.without_flash,
        })
    }
}

const SMALL: Case = Case {
    name: "prompt",
    dtype: DType::F32,
    batch: 1,
    heads: 6,
    kv_heads: 2,
    rows: 37,
    keys: 37,
    dim: 64,
    mask: Mask::Causal,
    softcap: None,
    has_sinks: false,
    without_flash: false,
    is_served: true,
};

#[rustfmt::skip]
pub fn small() -> Vec<Case> {
    let sinks = Case { has_sinks: true, ..SMALL };
    vec![
        SMALL,
        Case { name: "prompt behind a cache", keys: 90, ..SMALL },
        Case { name: "prompt in BF16", dtype: DType::BF16, ..SMALL },
        Case { name: "prompt in F16", dtype: DType::F16, ..SMALL },
        Case { name: "two prompts", batch: 2, ..SMALL },
        Case { name: "new token", rows: 1, keys: 90, mask: Mask::None, ..SMALL },
        Case { name: "new token, a window of 30", rows: 1, keys: 90, mask: Mask::Window(30), ..SMALL },
        Case { name: "a window of 10", mask: Mask::Window(10), ..SMALL },
        Case { name: "a softcap of 30 (Gemma 2)", softcap: Some(30.), ..SMALL },
        Case { name: "no mask (encoders)", mask: Mask::None, ..SMALL },
        Case { name: "added numbers", mask: Mask::Added(&[37, 37]), ..SMALL },
        Case { name: "added numbers of each head", mask: Mask::Added(&[6, 37, 37]), ..SMALL },
        Case { name: "added numbers of each sequence", batch: 2, mask: Mask::Added(&[2, 37, 37]), ..SMALL },
        Case { name: "added numbers of both, in one dim", batch: 2, mask: Mask::Added(&[12, 37, 37]), ..SMALL },
        Case { name: "added numbers of both", batch: 2, mask: Mask::Added(&[2, 6, 37, 37]), ..SMALL },
        Case { name: "sinks (gpt-oss), new token", rows: 1, keys: 90, mask: Mask::None, ..sinks },
        Case { name: "sinks, prompt", ..sinks },
        Case { name: "without flash", without_flash: true, ..SMALL },
        Case { name: "without flash, added numbers of each head", without_flash: true, mask: Mask::Added(&[6, 37, 37]), is_served: false, ..SMALL },
        Case { name: "heads of 640", dim: 640, is_served: false, ..SMALL },
    ]
}

#[rustfmt::skip]
pub fn large() -> Vec<Case> {
    let llama = Case { heads: 32, kv_heads: 8, rows: 512, keys: 512, ..SMALL };
    let token = Case { rows: 1, mask: Mask::None, ..llama };
    vec![
        Case { name: "32/8 heads of 64, prompt of 512", ..llama },
        Case { name: "the same in BF16", dtype: DType::BF16, ..llama },
        Case { name: "prompt of 128 after 2,048", rows: 128, keys: 2176, ..llama },
        Case { name: "new token after 2,048", keys: 2049, ..token },
        Case { name: "the same in BF16", dtype: DType::BF16, keys: 2049, ..token },
        Case { name: "new token after 8,192", keys: 8193, ..token },
    ]
}

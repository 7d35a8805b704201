//! A Llama and a BERT on the weights of candle-transformers' own, with Fulmen's attention, and
//! seeded weights for both. The tests compare them, the benchmark times them.

pub mod bert;
pub mod llama;

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

/// Seeded numbers of about the normal distribution.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Uniform in [0, 1), by splitmix64.
    fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 40) as f32 / (1u64 << 24) as f32
    }

    pub fn tensor(&mut self, dims: &[usize]) -> Tensor {
        let count = dims.iter().product();
        let normal = |_| (0..12).map(|_| self.uniform()).sum::<f32>() - 6.;
        let values: Vec<f32> = (0..count).map(normal).collect();
        Tensor::from_vec(values, dims, &Device::Cpu).unwrap()
    }
}

/// Weights that their names seed. A product keeps the size of its input, so any geometry does.
struct Seeded;

impl SimpleBackend for Seeded {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        let seed = name
            .bytes()
            .fold(1u64, |hash, byte| hash.wrapping_mul(31) + u64::from(byte));
        let normal = Numbers::new(seed).tensor(s.dims());
        let is_scale = s.dims().len() == 1 && name.ends_with("weight");
        let weights = match (is_scale, s.dims()) {
            (true, _) => ((normal * 0.1)? + 1.)?,
            (false, [_, inputs]) => (normal * (1.6 / (*inputs as f64).sqrt()))?,
            (false, _) => (normal * 0.2)?,
        };
        weights.to_dtype(dtype)?.to_device(device)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name} has no shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        false
    }
}

pub fn seeded(dtype: DType, device: &Device) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Seeded), dtype, device.clone())
}

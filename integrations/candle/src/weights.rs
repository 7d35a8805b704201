//! Random weights that their names seed, and what a rounding of each of them does to a model.

use std::io::Cursor;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

/// What is done to each weight.
#[derive(Clone, Copy)]
pub enum Weights {
    Exact,
    /// It stays, or becomes the fp32 number above or below it. The number is a seed.
    Neighbours(u64),
    /// It is rounded to this dtype.
    Rounded(DType),
}

/// Splitmix64.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: &str) -> Self {
        let hash = |hash: u64, byte: u8| hash.wrapping_mul(31) + u64::from(byte);
        Self(seed.bytes().fold(1, hash))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Uniform, of variance 1.
    pub fn tensor(&mut self, dims: &[usize]) -> Result<Tensor> {
        let number = |_| ((self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.) * 3f32.sqrt();
        let values: Vec<f32> = (0..dims.iter().product()).map(number).collect();
        Tensor::from_vec(values, dims, &Device::Cpu)
    }

    pub fn tokens(&mut self, dims: &[usize], vocabulary: usize) -> Result<Tensor> {
        let token = |_| (self.next() % vocabulary as u64) as u32;
        let values: Vec<u32> = (0..dims.iter().product()).map(token).collect();
        Tensor::from_vec(values, dims, &Device::Cpu)
    }
}

impl Weights {
    pub fn var_builder(self, dtype: DType) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self), dtype, Device::Cpu)
    }

    /// A product multiplies the size of its input by 1.6, so that softmax has something to choose.
    fn weight(self, name: &str, dims: &[usize]) -> Result<Tensor> {
        let random = Numbers::new(name).tensor(dims)?;
        let is_scale = dims.len() == 1 && name.ends_with("weight");
        let weight = match dims {
            [_] if is_scale => ((random * 0.1)? + 1.)?,
            [_] => (random * 0.2)?,
            _ => (random * (1.6 / (dims[1..].iter().product::<usize>() as f64).sqrt()))?,
        };
        match self {
            Self::Exact => Ok(weight),
            Self::Rounded(dtype) => weight.to_dtype(dtype)?.to_dtype(DType::F32),
            Self::Neighbours(seed) => {
                let mut numbers = Numbers::new(&format!("{seed} {name}"));
                let moved = |x: f32| match numbers.next() % 3 {
                    0 => x,
                    1 => x.next_up(),
                    _ => x.next_down(),
                };
                let values = weight.flatten_all()?.to_vec1::<f32>()?;
                let values: Vec<f32> = values.into_iter().map(moved).collect();
                Tensor::from_vec(values, dims, &Device::Cpu)
            }
        }
    }

    /// A file with these tensors. Matrices but the embedding are quantized, and as they are: a
    /// rounding before would do nothing to most of them.
    pub fn gguf(
        self,
        metadata: &[(&str, Value)],
        tensors: &[(String, Vec<usize>)],
        dtype: GgmlDType,
    ) -> Result<Cursor<Vec<u8>>> {
        let mut stored = Vec::new();
        for (name, dims) in tensors {
            let is_quantized = dims.len() > 1 && !name.starts_with("token");
            stored.push(match is_quantized && dtype != GgmlDType::F32 {
                true => QTensor::quantize(&Self::Exact.weight(name, dims)?, dtype)?,
                false => QTensor::quantize(&self.weight(name, dims)?, GgmlDType::F32)?,
            });
        }
        let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(k, v)| (*k, v)).collect();
        let names = tensors.iter().map(|(name, _)| name.as_str());
        let tensors: Vec<(&str, &QTensor)> = names.zip(&stored).collect();
        let mut file = Cursor::new(Vec::new());
        gguf_file::write(&mut file, &metadata, &tensors)?;
        file.set_position(0);
        Ok(file)
    }
}

impl SimpleBackend for Weights {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, _: &Device) -> Result<Tensor> {
        self.weight(name, s.dims())?.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name} has no shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        false
    }
}

/// Notes the names and shapes of what a model loads, which is zeros.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Vec<(String, Vec<usize>)>>>);

impl Recorder {
    pub fn var_builder(&self) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self.clone()), DType::F32, Device::Cpu)
    }

    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl SimpleBackend for Recorder {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push((name.to_string(), s.dims().to_vec()));
        Tensor::zeros(s, dtype, device)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name} has no shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        false
    }
}

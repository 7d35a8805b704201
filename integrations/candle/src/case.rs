//! A model, and what a run of it computes.

use candle_core::{DType, Result, Tensor};

use crate::weights::Weights;

/// Runs a model once over the same inputs: its outputs.
pub type Run = Box<dyn FnMut() -> Result<Tensor>>;

pub struct Case {
    pub name: String,
    pub dtype: DType,
    /// How many tokens, or places of a picture, a run computes.
    pub tokens: usize,
    /// Whether Fulmen has what the model asks for.
    pub is_served: bool,
    pub load: Box<dyn Fn(Weights, DType) -> Result<Run>>,
}

impl Case {
    pub fn new(
        name: String,
        tokens: usize,
        load: impl Fn(Weights, DType) -> Result<Run> + 'static,
    ) -> Self {
        Self {
            name,
            dtype: DType::F32,
            tokens,
            is_served: true,
            load: Box::new(load),
        }
    }

    pub fn not_served(mut self) -> Self {
        self.is_served = false;
        self
    }

    pub fn of(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self.name += &format!(", {dtype:?}");
        self
    }
}

/// The tokens that models know.
pub const VOCABULARY: usize = 500;

/// As in "2 layers of 12 x 64", or of 32/8 heads where 8 are keys' and values'.
pub fn layers(layers: usize, heads: impl std::fmt::Display, head_dim: usize) -> String {
    let plural = if layers == 1 { "" } else { "s" };
    format!("{layers} layer{plural} of {heads} x {head_dim}")
}

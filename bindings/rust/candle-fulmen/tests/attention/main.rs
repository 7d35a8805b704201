//! candle-fulmen against candle's own operations, and in models of candle-transformers.

mod bert;
#[cfg(feature = "cuda")]
mod cuda;
mod dense;
mod errors;
mod gradients;
mod llama;
#[path = "../models/mod.rs"]
mod models;
mod reference;
mod varlen;

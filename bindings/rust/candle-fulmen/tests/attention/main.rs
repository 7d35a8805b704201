//! candle-fulmen against candle's own operations, and in models of candle-transformers.

mod bert;
mod dense;
mod errors;
mod gradients;
mod llama;
mod reference;
mod varlen;
mod weights;

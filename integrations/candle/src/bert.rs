//! BERT.

use candle_core::{Device, Tensor};
use candle_transformers::models::bert;

use crate::case::{self, Case, VOCABULARY};
use crate::weights::Numbers;

/// Sequences of these lengths, padded to the longest.
pub fn padded(hidden: usize, heads: usize, layers: usize, lengths: Vec<usize>) -> Case {
    let sizes = case::layers(layers, heads, hidden / heads);
    let name = format!("BERT, {sizes}, sequences of {lengths:?}");
    Case::new(name, lengths.iter().sum(), move |weights, dtype| {
        let config = bert::Config {
            vocab_size: VOCABULARY,
            hidden_size: hidden,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            intermediate_size: 4 * hidden,
            ..bert::Config::default()
        };
        let model = bert::BertModel::load(weights.var_builder(dtype), &config)?;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let tokens = Numbers::new("tokens").tokens(&[lengths.len(), longest], VOCABULARY)?;
        let types = tokens.zeros_like()?;
        let is_used = |&length: &usize| (0..longest).map(move |i| u32::from(i < length));
        let mask: Vec<u32> = lengths.iter().flat_map(is_used).collect();
        let mask = Tensor::from_vec(mask, tokens.shape(), &Device::Cpu)?;
        Ok(Box::new(move || {
            model.forward(&tokens, &types, Some(&mask))
        }))
    })
}

//! Whisper.

use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};
use candle_transformers::models::whisper;
use candle_transformers::models::whisper::quantized_model::{VarBuilder, Whisper};

use crate::case::{self, Case, VOCABULARY};
use crate::weights::{Numbers, Recorder};

fn config(hidden: usize, heads: usize, layers: usize) -> whisper::Config {
    whisper::Config {
        num_mel_bins: 80,
        max_source_positions: 1500,
        d_model: hidden,
        encoder_attention_heads: heads,
        encoder_layers: layers,
        vocab_size: VOCABULARY,
        max_target_positions: 448,
        decoder_attention_heads: heads,
        decoder_layers: layers,
        suppress_tokens: Vec::new(),
    }
}

pub fn encoder(hidden: usize, heads: usize, layers: usize, frames: usize) -> Case {
    let sizes = case::layers(layers, heads, hidden / heads);
    let name = format!("Whisper's encoder, {sizes}, {frames} positions");
    Case::new(name, frames, move |weights, dtype| {
        let config = config(hidden, heads, layers);
        let vb = weights.var_builder(dtype);
        let mut model = whisper::model::Whisper::load(&vb, config)?;
        let mel = Numbers::new("mel").tensor(&[1, 80, 2 * frames])?;
        Ok(Box::new(move || model.encoder.forward(&mel, true)))
    })
}

/// Tokens over an encoder's features, then the same and two more with the features' keys and values
/// kept.
pub fn decoder(hidden: usize, heads: usize, layers: usize, tokens: usize, frames: usize) -> Case {
    let sizes = case::layers(layers, heads, hidden / heads);
    let name = format!("Whisper's decoder, {sizes}, {tokens} tokens over {frames} positions");
    Case::new(name, 2 * tokens + 2, move |weights, dtype| {
        let config = config(hidden, heads, layers);
        let vb = weights.var_builder(dtype);
        let mut model = whisper::model::Whisper::load(&vb, config)?;
        let features = Numbers::new("features").tensor(&[1, frames, hidden])?;
        let first = Numbers::new("tokens").tokens(&[1, tokens], VOCABULARY)?;
        let more = Numbers::new("more").tokens(&[1, 2], VOCABULARY)?;
        let all = Tensor::cat(&[&first, &more], 1)?;
        Ok(Box::new(move || {
            let first = model.decoder.forward(&first, &features, true)?;
            let all = model.decoder.forward(&all, &features, false)?;
            model.decoder.final_linear(&Tensor::cat(&[first, all], 1)?)
        }))
    })
}

/// Both, of a GGUF file.
pub fn quantized(hidden: usize, heads: usize, layers: usize, frames: usize) -> Case {
    let sizes = case::layers(layers, heads, hidden / heads);
    let name = format!("GGUF Whisper, {sizes}, 7 tokens over {frames} positions");
    Case::new(name, frames + 7, move |weights, _| {
        let config = config(hidden, heads, layers);
        // A file has the names and the shapes of the other one's weights.
        let seen = Recorder::default();
        whisper::model::Whisper::load(&seen.var_builder(), config.clone())?;
        let file = weights.gguf(&[], &seen.tensors(), GgmlDType::F32)?;
        let vb = VarBuilder::from_gguf_buffer(file.get_ref(), &Device::Cpu)?;
        let mut model = Whisper::load(&vb, config)?;
        let mel = Numbers::new("mel").tensor(&[1, 80, 2 * frames])?;
        let tokens = Numbers::new("tokens").tokens(&[1, 7], VOCABULARY)?;
        Ok(Box::new(move || {
            let features = model.encoder.forward(&mel, true)?;
            let decoded = model.decoder.forward(&tokens, &features, true)?;
            model.decoder.final_linear(&decoded)
        }))
    })
}

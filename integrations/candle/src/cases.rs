//! Which models are run, and how large.

use candle_core::quantized::GgmlDType;
use candle_core::DType;

use crate::models::{self, Case, LlamaSizes, Parts};

fn parts(batch: usize, before: usize, parts: &[usize]) -> Parts {
    Parts {
        batch,
        before,
        parts: parts.to_vec(),
    }
}

/// Models that take seconds together.
pub fn small() -> Vec<Case> {
    let llama = LlamaSizes {
        hidden: 192,
        heads: 6,
        kv_heads: 2,
        inner: 256,
        layers: 2,
    };
    // A prompt, a chunk behind it (a mask that is no square), new tokens.
    let tokens = || parts(2, 0, &[37, 5, 1, 1, 1]);
    let one = || parts(1, 0, &[37, 5, 1, 1, 1]);
    vec![
        models::llama(llama, tokens()),
        models::llama(llama, tokens()).of(DType::BF16),
        models::quantized_llama(llama, one(), GgmlDType::F32),
        models::quantized_llama(llama, one(), GgmlDType::Q4_0),
        // The last sequence is padding alone: all its keys count the same.
        models::bert(96, 3, 2, vec![33, 20, 1, 0]),
        models::whisper_encoder(96, 3, 2, 50),
        models::whisper_decoder(96, 3, 2, 11, 50),
        models::clip(),
        models::unet(vec![64, 128], 4, 16),
        models::unet(vec![64, 128], 4, 16).of(DType::F16),
        models::vae(64, 12),
        models::vae(64, 12).of(DType::F16),
        // A head wider than 512.
        models::vae(608, 4).not_served(),
    ]
}

/// Layers of real models' sizes.
pub fn timed() -> Vec<Case> {
    // Llama 3.2 1B has 16 of them.
    let llama = LlamaSizes {
        hidden: 2048,
        heads: 32,
        kv_heads: 8,
        inner: 8192,
        layers: 1,
    };
    let prompt = || parts(1, 0, &[1024]);
    let new = |before| parts(1, before, &[1; 8]);
    vec![
        models::llama(llama, prompt()),
        models::llama(llama, new(1024)),
        models::llama(llama, new(4000)),
        models::llama(llama, prompt()).of(DType::BF16),
        models::llama(llama, new(1024)).of(DType::BF16),
        models::quantized_llama(llama, prompt(), GgmlDType::Q4_0),
        models::quantized_llama(llama, new(1024), GgmlDType::Q4_0),
        models::quantized_llama(llama, new(4000), GgmlDType::Q4_0),
        models::bert(768, 12, 1, vec![512; 4]),
        models::bert(768, 12, 1, vec![512, 300, 200, 100]),
        models::whisper_encoder(512, 8, 1, 1500),
        models::whisper_decoder(512, 8, 1, 200, 1500),
        models::clip(),
        models::unet(vec![320], 8, 32),
        models::vae(512, 32),
    ]
}

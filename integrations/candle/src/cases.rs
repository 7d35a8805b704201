//! Which models are run, and how large.

use candle_core::quantized::GgmlDType;
use candle_core::DType;

use crate::case::Case;
use crate::llama::{self, LlamaSizes, Parts};
use crate::{bert, diffusion, whisper};

fn parts(batch: usize, before: usize, parts: &[usize]) -> Parts {
    Parts {
        batch,
        before,
        parts: parts.to_vec(),
    }
}

/// Models that take seconds together.
pub fn small() -> Vec<Case> {
    let sizes = LlamaSizes {
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
        llama::plain(sizes, tokens()),
        llama::plain(sizes, tokens()).of(DType::BF16),
        llama::quantized(sizes, one(), GgmlDType::F32),
        llama::quantized(sizes, one(), GgmlDType::Q4_0),
        // The last sequence is padding alone: all its keys count the same.
        bert::padded(96, 3, 2, vec![33, 20, 1, 0]),
        whisper::encoder(96, 3, 2, 50),
        whisper::decoder(96, 3, 2, 11, 50),
        whisper::quantized(96, 3, 2, 50),
        diffusion::clip(),
        diffusion::unet(vec![64, 128], 4, 16),
        diffusion::unet(vec![64, 128], 4, 16).of(DType::F16),
        diffusion::vae(64, 12),
        diffusion::vae(64, 12).of(DType::F16),
        // A head wider than 512.
        diffusion::vae(608, 4).not_served(),
    ]
}

/// Layers of real models' sizes.
pub fn timed() -> Vec<Case> {
    // A layer of Llama 3.2 1B, of BERT base, of Whisper base; the first level of Stable Diffusion
    // 1.5's UNet, at 256 x 256 pixels.
    let sizes = LlamaSizes {
        hidden: 2048,
        heads: 32,
        kv_heads: 8,
        inner: 8192,
        layers: 1,
    };
    let prompt = || parts(1, 0, &[1024]);
    let new = |before| parts(1, before, &[1; 8]);
    vec![
        llama::plain(sizes, prompt()),
        llama::plain(sizes, new(1024)),
        llama::plain(sizes, new(4000)),
        llama::plain(sizes, prompt()).of(DType::BF16),
        llama::plain(sizes, new(1024)).of(DType::BF16),
        bert::padded(768, 12, 1, vec![512; 4]),
        bert::padded(768, 12, 1, vec![512, 300, 200, 100]),
        whisper::encoder(512, 8, 1, 1500),
        whisper::decoder(512, 8, 1, 200, 1500),
        diffusion::clip(),
        diffusion::unet(vec![320], 8, 32),
        diffusion::vae(512, 32),
        llama::quantized(sizes, new(1024), GgmlDType::Q4_0),
    ]
}

//! A tiny Llama: candle-transformers' own, and one on the same weights whose attention is Fulmen's.

use candle_core::{DType, Device, Result, Tensor};
use candle_transformers::models::llama::{self, Cache, Config};

use crate::models::llama::Llama;
use crate::models::seeded;
use crate::reference::{assert_close, values};

pub fn config() -> Config {
    Config {
        hidden_size: 64,
        intermediate_size: 96,
        vocab_size: 50,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        use_flash_attn: false,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: 64,
        tie_word_embeddings: false,
    }
}

fn greedy(logits: &Tensor) -> Result<Vec<u32>> {
    logits.argmax(1)?.to_vec1()
}

#[test]
fn generates_the_same_tokens_with_a_kv_cache() -> Result<()> {
    for (dtype, tolerance) in [(DType::F32, 1e-3), (DType::BF16, 0.3)] {
        let (config, vb) = (config(), seeded(dtype, &Device::Cpu));
        let theirs = llama::Llama::load(vb.clone(), &config)?;
        let mut cache = Cache::new(true, dtype, &config, &Device::Cpu)?;
        let mut ours = Llama::load(&vb, &config)?;
        let prompt = Tensor::new(&[[3u32, 14, 15, 9, 2], [6, 5, 35, 8, 9]], &Device::Cpu)?;
        let (mut tokens, mut position, mut first) = (prompt.clone(), 0, None);
        for step in 0..12 {
            let reference = theirs.forward(&tokens, position, &mut cache)?;
            let logits = ours.forward(&tokens, position)?;
            let what = format!("{dtype:?}, step {step}");
            assert_close(&what, &logits, &reference, tolerance);
            assert!(
                values(&logits).iter().any(|x| x.abs() > 0.5),
                "{what}: logits of nothing"
            );
            if dtype == DType::F32 {
                assert_eq!(greedy(&logits)?, greedy(&reference)?, "{what}");
            }
            first.get_or_insert(logits);
            position += tokens.dim(1)?;
            tokens = Tensor::new(greedy(&reference)?, &Device::Cpu)?.unsqueeze(1)?;
        }
        // The next sequence begins with an empty cache.
        ours.reset();
        let again = ours.forward(&prompt, 0)?;
        assert_eq!(Some(values(&again)), first.as_ref().map(values));
    }
    Ok(())
}

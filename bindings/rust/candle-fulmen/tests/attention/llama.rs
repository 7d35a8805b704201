//! A tiny Llama: candle-transformers' own, and one on the same weights whose attention is Fulmen's.

use candle_core::{DType, Device, IndexOp, Result, Tensor};
use candle_fulmen::flash_attn;
use candle_nn::kv_cache::KvCache;
use candle_nn::rotary_emb::rope_thd;
use candle_nn::{
    embedding, linear_no_bias, rms_norm, Embedding, Linear, Module, RmsNorm, VarBuilder,
};
use candle_transformers::models::llama::{Cache, Config, Llama};

use crate::reference::{assert_close, values};
use crate::weights::seeded;

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const HIDDEN: usize = HEADS * HEAD_DIM;

fn config() -> Config {
    Config {
        hidden_size: HIDDEN,
        intermediate_size: 96,
        vocab_size: 50,
        num_hidden_layers: 2,
        num_attention_heads: HEADS,
        num_key_value_heads: KV_HEADS,
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

struct Block {
    norms: [RmsNorm; 2],
    qkvo: [Linear; 4],
    mlp: [Linear; 3],
    cache: KvCache,
}

impl Block {
    fn load(vb: &VarBuilder, config: &Config) -> Result<Self> {
        let norm = |name| rms_norm(HIDDEN, config.rms_norm_eps, vb.pp(name));
        let linear = |from, to, name| linear_no_bias(from, to, vb.pp(name));
        let (inner, kv) = (config.intermediate_size, KV_HEADS * HEAD_DIM);
        Ok(Self {
            norms: [norm("input_layernorm")?, norm("post_attention_layernorm")?],
            qkvo: [
                linear(HIDDEN, HIDDEN, "self_attn.q_proj")?,
                linear(HIDDEN, kv, "self_attn.k_proj")?,
                linear(HIDDEN, kv, "self_attn.v_proj")?,
                linear(HIDDEN, HIDDEN, "self_attn.o_proj")?,
            ],
            mlp: [
                linear(HIDDEN, inner, "mlp.gate_proj")?,
                linear(HIDDEN, inner, "mlp.up_proj")?,
                linear(inner, HIDDEN, "mlp.down_proj")?,
            ],
            cache: KvCache::new(1, config.max_position_embeddings),
        })
    }

    fn forward(&mut self, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
        let (batch, seqlen, _) = x.dims3()?;
        let normed = self.norms[0].forward(x)?;
        let [q, k, v, o] = &self.qkvo;
        let heads = |linear: &Linear, heads| {
            let x = linear.forward(&normed)?;
            x.reshape((batch, seqlen, heads, HEAD_DIM))
        };
        let q = rope_thd(&heads(q, HEADS)?, cos, sin)?;
        let k = rope_thd(&heads(k, KV_HEADS)?, cos, sin)?;
        // The cache's views and the fewer heads of k and v are taken as they are.
        let (k, v) = self.cache.append(&k, &heads(v, KV_HEADS)?)?;
        let out = flash_attn(&q, &k, &v, 1. / (HEAD_DIM as f32).sqrt(), true)?;
        let x = (x + o.forward(&out.flatten_from(2)?)?)?;
        let normed = self.norms[1].forward(&x)?;
        let [gate, up, down] = &self.mlp;
        let inner = (candle_nn::ops::silu(&gate.forward(&normed)?)? * up.forward(&normed)?)?;
        x + down.forward(&inner)?
    }
}

struct Ours {
    tokens: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
    cos: Tensor,
    sin: Tensor,
}

impl Ours {
    fn load(vb: &VarBuilder, config: &Config) -> Result<Self> {
        let frequency = |i: usize| config.rope_theta.powf(-((2 * i) as f32) / HEAD_DIM as f32);
        let frequencies: Vec<f32> = (0..HEAD_DIM / 2).map(frequency).collect();
        let positions: Vec<f32> = (0..config.max_position_embeddings)
            .map(|p| p as f32)
            .collect();
        let angles = Tensor::new(positions, &Device::Cpu)?
            .unsqueeze(1)?
            .broadcast_mul(&Tensor::new(frequencies, &Device::Cpu)?)?;
        let block = |i: usize| Block::load(&vb.pp(format!("model.layers.{i}")), config);
        Ok(Self {
            tokens: embedding(config.vocab_size, HIDDEN, vb.pp("model.embed_tokens"))?,
            blocks: (0..config.num_hidden_layers)
                .map(block)
                .collect::<Result<_>>()?,
            norm: rms_norm(HIDDEN, config.rms_norm_eps, vb.pp("model.norm"))?,
            head: linear_no_bias(HIDDEN, config.vocab_size, vb.pp("lm_head"))?,
            cos: angles.cos()?.to_dtype(vb.dtype())?,
            sin: angles.sin()?.to_dtype(vb.dtype())?,
        })
    }

    /// The last token's logits.
    fn forward(&mut self, tokens: &Tensor, position: usize) -> Result<Tensor> {
        let seqlen = tokens.dim(1)?;
        let cos = self.cos.narrow(0, position, seqlen)?;
        let sin = self.sin.narrow(0, position, seqlen)?;
        let mut x = self.tokens.forward(tokens)?;
        for block in &mut self.blocks {
            x = block.forward(&x, &cos, &sin)?;
        }
        let last = self
            .norm
            .forward(&x)?
            .i((.., seqlen - 1, ..))?
            .contiguous()?;
        self.head.forward(&last)?.to_dtype(DType::F32)
    }
}

fn greedy(logits: &Tensor) -> Result<Vec<u32>> {
    logits.argmax(1)?.to_vec1()
}

#[test]
fn generates_the_same_tokens_with_a_kv_cache() -> Result<()> {
    for (dtype, tolerance) in [(DType::F32, 1e-3), (DType::BF16, 0.3)] {
        let (config, vb) = (config(), seeded(dtype));
        let theirs = Llama::load(vb.clone(), &config)?;
        let mut cache = Cache::new(true, dtype, &config, &Device::Cpu)?;
        let mut ours = Ours::load(&vb, &config)?;
        let mut tokens = Tensor::new(&[[3u32, 14, 15, 9, 2], [6, 5, 35, 8, 9]], &Device::Cpu)?;
        let mut position = 0;
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
            position += tokens.dim(1)?;
            tokens = Tensor::new(greedy(&reference)?, &Device::Cpu)?.unsqueeze(1)?;
        }
    }
    Ok(())
}

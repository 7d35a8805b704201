//! A Llama whose attention is Fulmen's, over a KV cache that keeps its memory.

use candle_core::{DType, IndexOp, Result, Tensor};
use candle_fulmen::flash_attn;
use candle_nn::kv_cache::KvCache;
use candle_nn::rotary_emb::rope_thd;
use candle_nn::{
    embedding, linear_no_bias, rms_norm, Embedding, Linear, Module, RmsNorm, VarBuilder,
};
use candle_transformers::models::llama::Config;

struct Block {
    norms: [RmsNorm; 2],
    qkvo: [Linear; 4],
    mlp: [Linear; 3],
    cache: KvCache,
    heads: usize,
    kv_heads: usize,
}

impl Block {
    fn load(vb: &VarBuilder, config: &Config) -> Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        let norm = |name| rms_norm(hidden, config.rms_norm_eps, vb.pp(name));
        let linear = |from, to, name| linear_no_bias(from, to, vb.pp(name));
        let kv = hidden / heads * kv_heads;
        Ok(Self {
            norms: [norm("input_layernorm")?, norm("post_attention_layernorm")?],
            qkvo: [
                linear(hidden, hidden, "self_attn.q_proj")?,
                linear(hidden, kv, "self_attn.k_proj")?,
                linear(hidden, kv, "self_attn.v_proj")?,
                linear(hidden, hidden, "self_attn.o_proj")?,
            ],
            mlp: [
                linear(hidden, inner, "mlp.gate_proj")?,
                linear(hidden, inner, "mlp.up_proj")?,
                linear(inner, hidden, "mlp.down_proj")?,
            ],
            cache: KvCache::new(1, config.max_position_embeddings),
            heads,
            kv_heads,
        })
    }

    fn forward(&mut self, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
        let (batch, seqlen, hidden) = x.dims3()?;
        let head_dim = hidden / self.heads;
        let normed = self.norms[0].forward(x)?;
        let [q, k, v, o] = &self.qkvo;
        let heads = |linear: &Linear, heads| {
            let x = linear.forward(&normed)?;
            x.reshape((batch, seqlen, heads, head_dim))
        };
        let q = rope_thd(&heads(q, self.heads)?, cos, sin)?;
        let k = rope_thd(&heads(k, self.kv_heads)?, cos, sin)?;
        // The cache's views and the fewer heads of k and v are taken as they are.
        let (k, v) = self.cache.append(&k, &heads(v, self.kv_heads)?)?;
        let out = flash_attn(&q, &k, &v, 1. / (head_dim as f32).sqrt(), true)?;
        let x = (x + o.forward(&out.flatten_from(2)?)?)?;
        let normed = self.norms[1].forward(&x)?;
        let [gate, up, down] = &self.mlp;
        let inner = (candle_nn::ops::silu(&gate.forward(&normed)?)? * up.forward(&normed)?)?;
        x + down.forward(&inner)?
    }
}

pub struct Llama {
    tokens: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
    cos: Tensor,
    sin: Tensor,
}

impl Llama {
    pub fn load(vb: &VarBuilder, config: &Config) -> Result<Self> {
        let hidden = config.hidden_size;
        let head_dim = hidden / config.num_attention_heads;
        let frequency = |i: usize| config.rope_theta.powf(-((2 * i) as f32) / head_dim as f32);
        let frequencies: Vec<f32> = (0..head_dim / 2).map(frequency).collect();
        let positions: Vec<f32> = (0..config.max_position_embeddings)
            .map(|p| p as f32)
            .collect();
        let angles = Tensor::new(positions, vb.device())?
            .unsqueeze(1)?
            .broadcast_mul(&Tensor::new(frequencies, vb.device())?)?;
        let block = |i: usize| Block::load(&vb.pp(format!("model.layers.{i}")), config);
        Ok(Self {
            tokens: embedding(config.vocab_size, hidden, vb.pp("model.embed_tokens"))?,
            blocks: (0..config.num_hidden_layers)
                .map(block)
                .collect::<Result<_>>()?,
            norm: rms_norm(hidden, config.rms_norm_eps, vb.pp("model.norm"))?,
            head: linear_no_bias(hidden, config.vocab_size, vb.pp("lm_head"))?,
            cos: angles.cos()?.to_dtype(vb.dtype())?,
            sin: angles.sin()?.to_dtype(vb.dtype())?,
        })
    }

    /// Forgets all tokens.
    pub fn reset(&mut self) {
        for block in &mut self.blocks {
            block.cache.reset();
        }
    }

    /// The last token's logits.
    pub fn forward(&mut self, tokens: &Tensor, position: usize) -> Result<Tensor> {
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

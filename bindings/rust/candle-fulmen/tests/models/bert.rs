//! A BERT whose attention is Fulmen's, over padded batches and packed ones.

use candle_core::{Result, Tensor, D};
use candle_fulmen::{flash_attn_varlen, flash_attn_with_mask};
use candle_nn::{embedding, layer_norm, linear, Embedding, LayerNorm, Linear, Module, VarBuilder};
use candle_transformers::models::bert::Config;

/// How the sequences of a batch are told apart.
pub enum Sequences {
    /// `[batch, seqlen, hidden]`; the mask is not 0 where a token is.
    Padded { mask: Tensor },
    /// `[total, hidden]`; cumulative lengths.
    Packed { cu_seqlens: Tensor, longest: usize },
}

struct Layer {
    heads: usize,
    qkv: [Linear; 3],
    attention: (Linear, LayerNorm),
    inner: Linear,
    output: (Linear, LayerNorm),
}

impl Layer {
    fn load(vb: &VarBuilder, config: &Config) -> Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let part = |name| linear(hidden, hidden, vb.pp("attention.self").pp(name));
        let with_norm = |name, from| -> Result<_> {
            let vb = vb.pp(name);
            let dense = linear(from, hidden, vb.pp("dense"))?;
            let norm = layer_norm(hidden, config.layer_norm_eps, vb.pp("LayerNorm"))?;
            Ok((dense, norm))
        };
        Ok(Self {
            heads: config.num_attention_heads,
            qkv: [part("query")?, part("key")?, part("value")?],
            attention: with_norm("attention.output", hidden)?,
            inner: linear(hidden, inner, vb.pp("intermediate.dense"))?,
            output: with_norm("output", inner)?,
        })
    }

    fn forward(&self, x: &Tensor, sequences: &Sequences) -> Result<Tensor> {
        let (rows, head_dim) = (&x.dims()[..x.rank() - 1], x.dim(D::Minus1)? / self.heads);
        let heads = |linear: &Linear| {
            linear
                .forward(x)?
                .reshape([rows, &[self.heads, head_dim]].concat())
        };
        let [q, k, v] = &self.qkv;
        let (q, k, v) = (heads(q)?, heads(k)?, heads(v)?);
        let scale = 1. / (head_dim as f32).sqrt();
        let out = match sequences {
            Sequences::Padded { mask } => {
                flash_attn_with_mask(&q, &k, &v, Some(mask), scale, false)?
            }
            Sequences::Packed {
                cu_seqlens,
                longest,
            } => {
                let (cu, longest) = (cu_seqlens, *longest);
                flash_attn_varlen(&q, &k, &v, cu, cu, longest, longest, scale, false)?
            }
        };
        let add = |(dense, norm): &(Linear, LayerNorm), x: &Tensor, to: &Tensor| {
            norm.forward(&(dense.forward(x)? + to)?)
        };
        let x = add(&self.attention, &out.flatten_from(out.rank() - 2)?, x)?;
        let inner = self.inner.forward(&x)?.gelu_erf()?;
        add(&self.output, &inner, &x)
    }
}

pub struct Bert {
    embeddings: [Embedding; 3],
    norm: LayerNorm,
    layers: Vec<Layer>,
}

impl Bert {
    pub fn load(vb: &VarBuilder, config: &Config) -> Result<Self> {
        let hidden = config.hidden_size;
        let table = |rows, name| embedding(rows, hidden, vb.pp("embeddings").pp(name));
        let layer = |i: usize| Layer::load(&vb.pp(format!("encoder.layer.{i}")), config);
        Ok(Self {
            embeddings: [
                table(config.vocab_size, "word_embeddings")?,
                table(config.max_position_embeddings, "position_embeddings")?,
                table(config.type_vocab_size, "token_type_embeddings")?,
            ],
            norm: layer_norm(hidden, config.layer_norm_eps, vb.pp("embeddings.LayerNorm"))?,
            layers: (0..config.num_hidden_layers)
                .map(layer)
                .collect::<Result<_>>()?,
        })
    }

    /// The hidden states of all tokens.
    pub fn forward(
        &self,
        tokens: &Tensor,
        positions: &Tensor,
        sequences: &Sequences,
    ) -> Result<Tensor> {
        let [words, places, types] = &self.embeddings;
        let mut x = (words.forward(tokens)? + types.forward(&tokens.zeros_like()?)?)?;
        x = x.broadcast_add(&places.forward(positions)?)?;
        x = self.norm.forward(&x)?;
        for layer in &self.layers {
            x = layer.forward(&x, sequences)?;
        }
        Ok(x)
    }
}

//! A tiny BERT over a padded batch: candle-transformers' own, and one on the same weights whose
//! attention is Fulmen's.

use candle_core::{DType, Device, Result, Tensor};
use candle_fulmen::{flash_attn_varlen, flash_attn_with_mask};
use candle_nn::{embedding, layer_norm, linear, Embedding, LayerNorm, Linear, Module, VarBuilder};
use candle_transformers::models::bert::{BertModel, Config};

use crate::reference::assert_close;
use crate::weights::seeded;

const HEADS: usize = 4;
const HEAD_DIM: usize = 16;
const HIDDEN: usize = HEADS * HEAD_DIM;
const INNER: usize = 96;
const EPSILON: f64 = 1e-12;

fn config() -> Config {
    Config {
        vocab_size: 40,
        hidden_size: HIDDEN,
        num_hidden_layers: 2,
        num_attention_heads: HEADS,
        intermediate_size: INNER,
        max_position_embeddings: 32,
        layer_norm_eps: EPSILON,
        ..Config::default()
    }
}

/// How the sequences of a batch are told apart.
enum Sequences {
    /// `[batch, seqlen, hidden]`; the mask is not 0 where a token is.
    Padded { mask: Tensor },
    /// `[total, hidden]`; cumulative lengths.
    Packed { cu_seqlens: Tensor, longest: usize },
}

struct Layer {
    qkv: [Linear; 3],
    attention: (Linear, LayerNorm),
    inner: Linear,
    output: (Linear, LayerNorm),
}

impl Layer {
    fn load(vb: &VarBuilder) -> Result<Self> {
        let part = |name| linear(HIDDEN, HIDDEN, vb.pp("attention.self").pp(name));
        let with_norm = |name, from| -> Result<_> {
            let vb = vb.pp(name);
            let dense = linear(from, HIDDEN, vb.pp("dense"))?;
            Ok((dense, layer_norm(HIDDEN, EPSILON, vb.pp("LayerNorm"))?))
        };
        Ok(Self {
            qkv: [part("query")?, part("key")?, part("value")?],
            attention: with_norm("attention.output", HIDDEN)?,
            inner: linear(HIDDEN, INNER, vb.pp("intermediate.dense"))?,
            output: with_norm("output", INNER)?,
        })
    }

    fn forward(&self, x: &Tensor, sequences: &Sequences) -> Result<Tensor> {
        let rows = &x.dims()[..x.rank() - 1];
        let heads = |linear: &Linear| {
            linear
                .forward(x)?
                .reshape([rows, &[HEADS, HEAD_DIM]].concat())
        };
        let [q, k, v] = &self.qkv;
        let (q, k, v) = (heads(q)?, heads(k)?, heads(v)?);
        let scale = 1. / (HEAD_DIM as f32).sqrt();
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

struct Ours {
    embeddings: [Embedding; 3],
    norm: LayerNorm,
    layers: Vec<Layer>,
}

impl Ours {
    fn load(vb: &VarBuilder, config: &Config) -> Result<Self> {
        let table = |rows, name| embedding(rows, HIDDEN, vb.pp("embeddings").pp(name));
        let layer = |i: usize| Layer::load(&vb.pp(format!("encoder.layer.{i}")));
        Ok(Self {
            embeddings: [
                table(config.vocab_size, "word_embeddings")?,
                table(config.max_position_embeddings, "position_embeddings")?,
                table(config.type_vocab_size, "token_type_embeddings")?,
            ],
            norm: layer_norm(HIDDEN, EPSILON, vb.pp("embeddings.LayerNorm"))?,
            layers: (0..config.num_hidden_layers)
                .map(layer)
                .collect::<Result<_>>()?,
        })
    }

    fn forward(
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

#[test]
fn encodes_a_padded_batch_and_a_packed_one() -> Result<()> {
    let (config, vb) = (config(), seeded(DType::F32));
    let theirs = BertModel::load(vb.clone(), &config)?;
    let ours = Ours::load(&vb, &config)?;
    // Three sequences of 7, 4 and 1 tokens; 0 pads.
    let tokens = Tensor::new(
        &[
            [5u32, 8, 1, 30, 2, 9, 7],
            [11, 4, 6, 3, 0, 0, 0],
            [12, 0, 0, 0, 0, 0, 0],
        ],
        &Device::Cpu,
    )?;
    let mask = tokens.gt(0u32)?;
    let reference = theirs.forward(&tokens, &tokens.zeros_like()?, Some(&mask))?;

    let positions = Tensor::arange(0u32, 7, &Device::Cpu)?;
    let padded = Sequences::Padded {
        mask: mask.reshape((3, 1, 1, 7))?,
    };
    let out = ours.forward(&tokens, &positions, &padded)?;
    assert_close("padded", &out, &reference, 1e-4);

    let lengths = [7, 4, 1];
    let used = |t: &Tensor| {
        let rows = |n: usize| t.get(n)?.narrow(0, 0, lengths[n]);
        Tensor::cat(&[rows(0)?, rows(1)?, rows(2)?], 0)
    };
    let packed = Sequences::Packed {
        cu_seqlens: Tensor::new(&[0u32, 7, 11, 12], &Device::Cpu)?,
        longest: 7,
    };
    let positions = used(&positions.broadcast_as((3, 7))?.contiguous()?)?;
    let out = ours.forward(&used(&tokens)?, &positions, &packed)?;
    assert_close("packed", &out, &used(&reference)?, 1e-4);
    Ok(())
}

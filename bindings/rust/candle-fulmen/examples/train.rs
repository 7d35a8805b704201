//! Trains a small encoder on attention that has gradients: `cargo run -p candle-fulmen --example
//! train`.
//!
//! The task needs attention: each sequence has one marked token, and the model says which class
//! that token has. The loss is printed; chance is ln 8, about 2.08.

use candle_core::{DType, Device, Result, Tensor, D};
use candle_fulmen::Attention;
use candle_nn::{
    embedding, layer_norm, linear, loss, AdamW, Embedding, LayerNorm, Linear, Module, Optimizer,
    ParamsAdamW, VarBuilder, VarMap,
};

const CLASSES: usize = 8;
const BATCH: usize = 32;
const SEQLEN: usize = 16;
const HEADS: usize = 4;
const HEAD_DIM: usize = 8;
const HIDDEN: usize = HEADS * HEAD_DIM;
const LAYERS: usize = 2;

/// Marked tokens have numbers from CLASSES on.
const TOKENS: usize = 2 * CLASSES;

struct Layer {
    norms: [LayerNorm; 2],
    qkv: Linear,
    project: Linear,
    inner: Linear,
    outer: Linear,
    /// `[heads, seqlen, seqlen]`: learned, a position's relation to each other.
    bias: Tensor,
}

impl Layer {
    fn new(vb: &VarBuilder) -> Result<Self> {
        let zero = candle_nn::Init::Const(0.);
        Ok(Self {
            norms: [
                layer_norm(HIDDEN, 1e-5, vb.pp("norm_1"))?,
                layer_norm(HIDDEN, 1e-5, vb.pp("norm_2"))?,
            ],
            qkv: linear(HIDDEN, 3 * HIDDEN, vb.pp("qkv"))?,
            project: linear(HIDDEN, HIDDEN, vb.pp("project"))?,
            inner: linear(HIDDEN, 2 * HIDDEN, vb.pp("inner"))?,
            outer: linear(2 * HIDDEN, HIDDEN, vb.pp("outer"))?,
            bias: vb.get_with_hints((HEADS, SEQLEN, SEQLEN), "bias", zero)?,
        })
    }

    fn forward(&self, x: &Tensor, dropout_offset: u64) -> Result<Tensor> {
        let qkv = self.qkv.forward(&self.norms[0].forward(x)?)?;
        let qkv = qkv.reshape((BATCH, SEQLEN, 3, HEADS, HEAD_DIM))?;
        // The slots of the packed tensor are taken with their strides.
        let slot = |n| qkv.narrow(2, n, 1)?.squeeze(2);
        let out = Attention::new()
            .mask(&self.bias)
            .dropout(0.1, 1, dropout_offset)
            .run(&slot(0)?, &slot(1)?, &slot(2)?)?;
        let x = (x + self.project.forward(&out.flatten_from(2)?)?)?;
        let inner = self.inner.forward(&self.norms[1].forward(&x)?)?.gelu()?;
        x + self.outer.forward(&inner)?
    }
}

struct Encoder {
    tokens: Embedding,
    layers: Vec<Layer>,
    head: Linear,
}

impl Encoder {
    fn new(vb: &VarBuilder) -> Result<Self> {
        let layer = |i: usize| Layer::new(&vb.pp(format!("layer_{i}")));
        Ok(Self {
            tokens: embedding(TOKENS, HIDDEN, vb.pp("tokens"))?,
            layers: (0..LAYERS).map(layer).collect::<Result<_>>()?,
            head: linear(HIDDEN, CLASSES, vb.pp("head"))?,
        })
    }

    /// Logits `[batch, classes]`, from the first position alone: what it knows came by attention.
    fn forward(&self, tokens: &Tensor, step: u64) -> Result<Tensor> {
        let mut x = self.tokens.forward(tokens)?;
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x, step * LAYERS as u64 + i as u64)?;
        }
        self.head.forward(&x.narrow(1, 0, 1)?.squeeze(1)?)
    }
}

/// Seeded tokens `[batch, seqlen]`, and the class of the marked one.
fn batch(step: u64, device: &Device) -> Result<(Tensor, Tensor)> {
    let mut state = step + 1;
    let mut below = |n: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let (mut tokens, mut classes) = (Vec::new(), Vec::new());
    for _ in 0..BATCH {
        let marked = below(SEQLEN);
        for position in 0..SEQLEN {
            let class = below(CLASSES);
            let is_marked = position == marked;
            tokens.push((class + if is_marked { CLASSES } else { 0 }) as u32);
            if is_marked {
                classes.push(class as u32);
            }
        }
    }
    let tokens = Tensor::from_vec(tokens, (BATCH, SEQLEN), device)?;
    Ok((tokens, Tensor::from_vec(classes, BATCH, device)?))
}

fn main() -> Result<()> {
    let device = Device::cuda_if_available(0)?;
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &device);
    let encoder = Encoder::new(&vb)?;
    let parameters = ParamsAdamW {
        lr: 3e-3,
        ..ParamsAdamW::default()
    };
    let mut optimizer = AdamW::new(variables.all_vars(), parameters)?;
    for step in 0..=300 {
        let (tokens, classes) = batch(step, &device)?;
        let logits = encoder.forward(&tokens, step)?;
        let loss = loss::cross_entropy(&logits, &classes)?;
        optimizer.backward_step(&loss)?;
        if step % 50 == 0 {
            let right = logits.argmax(D::Minus1)?.eq(&classes)?;
            let right = right.to_dtype(DType::F32)?.mean_all()?.to_scalar::<f32>()?;
            let loss = loss.to_scalar::<f32>()?;
            println!(
                "step {step:3}  loss {loss:.4}  right {:3.0} %",
                100. * right
            );
        }
    }
    Ok(())
}

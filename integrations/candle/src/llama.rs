//! Llama, of safetensors and of a GGUF file.

use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::GgmlDType;
use candle_core::{Device, Result, Tensor};
use candle_transformers::models::{llama, quantized_llama};

use crate::case::{self, Case, VOCABULARY};
use crate::weights::Numbers;

#[derive(Clone, Copy)]
pub struct LlamaSizes {
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub inner: usize,
    pub layers: usize,
}

impl LlamaSizes {
    fn name(self) -> String {
        let heads = format!("{}/{}", self.heads, self.kv_heads);
        case::layers(self.layers, heads, self.hidden / self.heads)
    }

    fn config(self) -> llama::Config {
        llama::Config {
            hidden_size: self.hidden,
            intermediate_size: self.inner,
            vocab_size: VOCABULARY,
            num_hidden_layers: self.layers,
            num_attention_heads: self.heads,
            num_key_value_heads: self.kv_heads,
            use_flash_attn: false,
            rms_norm_eps: 1e-5,
            rope_theta: 10_000.,
            bos_token_id: None,
            eos_token_id: None,
            rope_scaling: None,
            max_position_embeddings: 4096,
            tie_word_embeddings: false,
        }
    }
}

/// Tokens that go through a Llama in parts. `before` are computed once, when it is loaded.
#[derive(Clone)]
pub struct Parts {
    pub batch: usize,
    pub before: usize,
    pub parts: Vec<usize>,
}

impl Parts {
    fn name(&self) -> String {
        let Self {
            batch,
            before,
            parts,
        } = self;
        let batch = if *batch > 1 {
            format!("{batch} x ")
        } else {
            String::new()
        };
        match parts.as_slice() {
            [prompt] if *prompt > 1 && *before == 0 => format!("prompt of {batch}{prompt}"),
            [1, ..] => format!("{} new tokens behind {batch}{before}", parts.len()),
            _ => format!("parts of {batch}{parts:?}"),
        }
    }

    fn tokens(&self) -> usize {
        self.batch * self.parts.iter().sum::<usize>()
    }

    /// The outputs of all parts, by a function of tokens and of how many are before them.
    fn run(&self, mut forward: impl FnMut(&Tensor, usize) -> Result<Tensor>) -> Result<Tensor> {
        let mut outputs = Vec::new();
        let mut at = self.before;
        for &part in &self.parts {
            let tokens = self.of(at, part)?;
            outputs.push(forward(&tokens, at)?);
            at += part;
        }
        Tensor::cat(&outputs, 0)
    }

    fn of(&self, at: usize, count: usize) -> Result<Tensor> {
        Numbers::new(&format!("tokens {at}")).tokens(&[self.batch, count], VOCABULARY)
    }
}

pub fn plain(sizes: LlamaSizes, parts: Parts) -> Case {
    let name = format!("Llama, {}, {}", sizes.name(), parts.name());
    Case::new(name, parts.tokens(), move |weights, dtype| {
        let config = sizes.config();
        let model = llama::Llama::load(weights.var_builder(dtype), &config)?;
        let mut empty = llama::Cache::new(true, dtype, &config, &Device::Cpu)?;
        if parts.before > 0 {
            model.forward(&parts.of(0, parts.before)?, 0, &mut empty)?;
        }
        let parts = parts.clone();
        Ok(Box::new(move || {
            let mut cache = empty.clone();
            parts.run(|tokens, at| model.forward(tokens, at, &mut cache))
        }))
    })
}

/// Llama of a GGUF file.
pub fn quantized(sizes: LlamaSizes, parts: Parts, dtype: GgmlDType) -> Case {
    let name = format!("GGUF Llama {dtype:?}, {}, {}", sizes.name(), parts.name());
    Case::new(name, parts.tokens(), move |weights, _| {
        let number = |n: usize| Value::U32(n as u32);
        let head_dim = sizes.hidden / sizes.heads;
        let metadata = [
            ("general.architecture", Value::String("llama".to_string())),
            ("llama.attention.head_count", number(sizes.heads)),
            ("llama.attention.head_count_kv", number(sizes.kv_heads)),
            ("llama.block_count", number(sizes.layers)),
            ("llama.embedding_length", number(sizes.hidden)),
            ("llama.rope.dimension_count", number(head_dim)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ];
        let (hidden, inner, kv) = (sizes.hidden, sizes.inner, head_dim * sizes.kv_heads);
        let mut tensors = vec![
            ("token_embd.weight".to_string(), vec![VOCABULARY, hidden]),
            ("output_norm.weight".to_string(), vec![hidden]),
            ("output.weight".to_string(), vec![VOCABULARY, hidden]),
        ];
        for layer in 0..sizes.layers {
            for (name, dims) in [
                ("attn_q", vec![hidden, hidden]),
                ("attn_k", vec![kv, hidden]),
                ("attn_v", vec![kv, hidden]),
                ("attn_output", vec![hidden, hidden]),
                ("ffn_gate", vec![inner, hidden]),
                ("ffn_up", vec![inner, hidden]),
                ("ffn_down", vec![hidden, inner]),
                ("attn_norm", vec![hidden]),
                ("ffn_norm", vec![hidden]),
            ] {
                tensors.push((format!("blk.{layer}.{name}.weight"), dims));
            }
        }
        let mut file = weights.gguf(&metadata, &tensors, dtype)?;
        let content = Content::read(&mut file)?;
        let mut empty = quantized_llama::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
        if parts.before > 0 {
            empty.forward(&parts.of(0, parts.before)?, 0)?;
        }
        let parts = parts.clone();
        Ok(Box::new(move || {
            let mut model = empty.clone();
            parts.run(|tokens, at| model.forward(tokens, at))
        }))
    })
}

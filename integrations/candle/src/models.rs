//! The models, and what a run of each computes.

use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_transformers::models::stable_diffusion::{clip, unet_2d, vae};
use candle_transformers::models::{bert, llama, quantized_llama, whisper};

use crate::weights::{Numbers, Weights};

/// Runs a model once over the same inputs: its outputs.
pub type Run = Box<dyn FnMut() -> Result<Tensor>>;

pub struct Case {
    pub name: String,
    pub dtype: DType,
    /// How many tokens, or places of a picture, a run computes.
    pub tokens: usize,
    /// Whether Fulmen has what the model asks for.
    pub is_served: bool,
    pub load: Box<dyn Fn(Weights, DType) -> Result<Run>>,
}

impl Case {
    fn new(
        name: String,
        tokens: usize,
        load: impl Fn(Weights, DType) -> Result<Run> + 'static,
    ) -> Self {
        Self {
            name,
            dtype: DType::F32,
            tokens,
            is_served: true,
            load: Box::new(load),
        }
    }

    pub fn not_served(mut self) -> Self {
        self.is_served = false;
        self
    }

    pub fn of(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self.name += &format!(", {dtype:?}");
        self
    }
}

const VOCABULARY: usize = 500;

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
        let head_dim = self.hidden / self.heads;
        let Self {
            heads, kv_heads, ..
        } = self;
        format!("{} layers of {heads}/{kv_heads} x {head_dim}", self.layers)
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

pub fn llama(sizes: LlamaSizes, parts: Parts) -> Case {
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
pub fn quantized_llama(sizes: LlamaSizes, parts: Parts, dtype: GgmlDType) -> Case {
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

/// Sequences of these lengths, padded to the longest.
pub fn bert(hidden: usize, heads: usize, layers: usize, lengths: Vec<usize>) -> Case {
    let sizes = format!("{layers} layers of {heads} x {}", hidden / heads);
    let name = format!("BERT, {sizes}, sequences of {lengths:?}");
    Case::new(name, lengths.iter().sum(), move |weights, dtype| {
        let config = bert::Config {
            vocab_size: VOCABULARY,
            hidden_size: hidden,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            intermediate_size: 4 * hidden,
            ..bert::Config::default()
        };
        let model = bert::BertModel::load(weights.var_builder(dtype), &config)?;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let tokens = Numbers::new("tokens").tokens(&[lengths.len(), longest], VOCABULARY)?;
        let types = tokens.zeros_like()?;
        let is_used = |&length: &usize| (0..longest).map(move |i| u32::from(i < length));
        let mask: Vec<u32> = lengths.iter().flat_map(is_used).collect();
        let mask = Tensor::from_vec(mask, tokens.shape(), &Device::Cpu)?;
        Ok(Box::new(move || {
            model.forward(&tokens, &types, Some(&mask))
        }))
    })
}

fn whisper_config(hidden: usize, heads: usize, layers: usize) -> whisper::Config {
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

pub fn whisper_encoder(hidden: usize, heads: usize, layers: usize, frames: usize) -> Case {
    let sizes = format!("{layers} layers of {heads} x {}", hidden / heads);
    let name = format!("Whisper's encoder, {sizes}, {frames} positions");
    Case::new(name, frames, move |weights, dtype| {
        let config = whisper_config(hidden, heads, layers);
        let vb = weights.var_builder(dtype);
        let mut model = whisper::model::Whisper::load(&vb, config)?;
        let mel = Numbers::new("mel").tensor(&[1, 80, 2 * frames])?;
        Ok(Box::new(move || model.encoder.forward(&mel, true)))
    })
}

/// Tokens over an encoder's features, then the same and two more with the features' keys and values
/// kept.
pub fn whisper_decoder(
    hidden: usize,
    heads: usize,
    layers: usize,
    tokens: usize,
    frames: usize,
) -> Case {
    let sizes = format!("{layers} layers of {heads} x {}", hidden / heads);
    let name = format!("Whisper's decoder, {sizes}, {tokens} tokens over {frames} positions");
    Case::new(name, 2 * tokens + 2, move |weights, dtype| {
        let config = whisper_config(hidden, heads, layers);
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

/// CLIP's text model of Stable Diffusion 1.5, whose sizes are candle's own.
pub fn clip() -> Case {
    let name = "Stable Diffusion's text model, 12 layers of 12 x 64, 77 tokens".to_string();
    Case::new(name, 77, |weights, dtype| {
        let config = clip::Config::v1_5();
        let model = clip::ClipTextTransformer::new(weights.var_builder(dtype), &config)?;
        let tokens = Numbers::new("tokens").tokens(&[1, 77], VOCABULARY)?;
        Ok(Box::new(move || model.forward(&tokens)))
    })
}

/// A UNet with attention at each of its levels, `channels` the levels' channels.
pub fn unet(channels: Vec<usize>, heads: usize, side: usize) -> Case {
    let name = format!("Stable Diffusion's UNet, {channels:?} channels, {heads} heads, {side}²");
    Case::new(name, side * side, move |weights, dtype| {
        let block = |&out_channels: &usize| unet_2d::BlockConfig {
            out_channels,
            use_cross_attn: Some(1),
            attention_head_dim: heads,
        };
        let config = unet_2d::UNet2DConditionModelConfig {
            blocks: channels.iter().map(block).collect(),
            layers_per_block: 1,
            cross_attention_dim: 768,
            ..Default::default()
        };
        let vb = weights.var_builder(dtype);
        let model = unet_2d::UNet2DConditionModel::new(vb, 4, 4, false, config)?;
        let latents = Numbers::new("latents")
            .tensor(&[1, 4, side, side])?
            .to_dtype(dtype)?;
        let text = Numbers::new("text")
            .tensor(&[1, 77, 768])?
            .to_dtype(dtype)?;
        Ok(Box::new(move || model.forward(&latents, 500., &text)))
    })
}

/// A VAE's decoder, whose middle has one head of all channels.
pub fn vae(channels: usize, side: usize) -> Case {
    let name = format!("Stable Diffusion's VAE, one head of {channels}, {side}²");
    Case::new(name, side * side, move |weights, dtype| {
        let config = vae::AutoEncoderKLConfig {
            block_out_channels: vec![channels],
            layers_per_block: 1,
            latent_channels: 4,
            norm_num_groups: 32,
            use_quant_conv: true,
            use_post_quant_conv: true,
        };
        let model = vae::AutoEncoderKL::new(weights.var_builder(dtype), 3, 3, config)?;
        let latents = Numbers::new("latents")
            .tensor(&[1, 4, side, side])?
            .to_dtype(dtype)?;
        Ok(Box::new(move || model.decode(&latents)))
    })
}

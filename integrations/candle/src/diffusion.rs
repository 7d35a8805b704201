//! The parts of Stable Diffusion.

use candle_core::Module;
use candle_transformers::models::stable_diffusion::{clip, unet_2d, vae};

use crate::case::{Case, VOCABULARY};
use crate::weights::Numbers;

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

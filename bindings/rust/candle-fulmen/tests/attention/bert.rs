//! A tiny BERT over a padded batch: candle-transformers' own, and one on the same weights whose
//! attention is Fulmen's.

use candle_core::{DType, Device, Result, Tensor};
use candle_transformers::models::bert::{BertModel, Config};

use crate::models::bert::{Bert, Sequences};
use crate::models::seeded;
use crate::reference::assert_close;

fn config() -> Config {
    Config {
        vocab_size: 40,
        hidden_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 96,
        max_position_embeddings: 32,
        layer_norm_eps: 1e-12,
        ..Config::default()
    }
}

#[test]
fn encodes_a_padded_batch_and_a_packed_one() -> Result<()> {
    let (config, vb) = (config(), seeded(DType::F32, &Device::Cpu));
    let theirs = BertModel::load(vb.clone(), &config)?;
    let ours = Bert::load(&vb, &config)?;
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

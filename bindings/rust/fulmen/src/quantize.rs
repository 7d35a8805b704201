//! Between numbers and the formats of keys and values in 8 bits and less.

use std::ptr;

use fulmen_sys as sys;

use crate::error::{check, Result};
use crate::tensor::{Tensor, TensorMut};

/// Keys or values, `f32`, `f16` or `bf16` `[batch, seqlen, kv_heads, head_dim]`, in the format of
/// `quantized`, of their shape: `i8`, [`crate::F8E4M3`] and its kin, or blocks
/// ([`TensorMut::blocks`]). In host memory.
///
/// `scale` is written: `f32` or `f16`, of the same dims, each of which may be 1. What shares a
/// scale is divided by it, so that its largest size becomes the format's largest, and rounded to
/// the nearest. `None`: blocks, or a scale of 1. A NaN or an infinity makes what shares its scale
/// NaN.
///
/// ```
/// use fulmen::{dequantize_kv, quantize_kv, Tensor, TensorMut};
///
/// let shape = [1, 3, 1, 16];
/// let k: Vec<f32> = (0..48).map(|i| i as f32 - 24.).collect();
/// let (mut k8, mut scales, mut back) = (vec![0i8; 48], vec![0f32; 3], vec![0f32; 48]);
/// quantize_kv(
///     Tensor::bshd(&k, shape)?,
///     TensorMut::bshd(&mut k8, shape)?,
///     Some(TensorMut::bshd(&mut scales, [1, 3, 1, 1])?), // one of each token
/// )?;
/// assert_eq!((k8[0], scales[0]), (-127, 24. / 127.));
/// let scales = Tensor::bshd(&scales, [1, 3, 1, 1])?;
/// dequantize_kv(Tensor::bshd(&k8, shape)?, Some(scales), TensorMut::bshd(&mut back, shape)?)?;
/// assert!(k.iter().zip(&back).all(|(a, b)| (a - b).abs() < 0.1));
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn quantize_kv(
    numbers: Tensor<'_>,
    quantized: TensorMut<'_>,
    scale: Option<TensorMut<'_>>,
) -> Result<()> {
    let scale = scale.map(|scale| scale.raw);
    quantize(&numbers.raw, &quantized.raw, scale.as_ref(), false)
}

/// [`quantize_kv`] by scales that are given. A scale of 0 makes zeros.
///
/// ```
/// use fulmen::{quantize_kv_by, Tensor, TensorMut, F8E4M3};
///
/// let mut k8 = [F8E4M3(0); 2];
/// quantize_kv_by(
///     Tensor::bshd(&[1f32, -3.], [1, 1, 1, 2])?,
///     TensorMut::bshd(&mut k8, [1, 1, 1, 2])?,
///     Tensor::one_dim(&[0.5f32])?,
/// )?;
/// assert_eq!(k8.map(f32::from), [2., -6.]);
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn quantize_kv_by(
    numbers: Tensor<'_>,
    quantized: TensorMut<'_>,
    scale: Tensor<'_>,
) -> Result<()> {
    quantize(&numbers.raw, &quantized.raw, Some(&scale.raw), true)
}

/// The way back: what is stored times its scale (`None`: 1), rounded to the dtype of `numbers`,
/// which is written.
///
/// ```
/// use fulmen::{dequantize_kv, quantize_kv, DType, Tensor, TensorMut};
///
/// let (shape, k) = ([1, 1, 1, 32], [0.5f32; 32]);
/// let (mut blocks, mut back) = ([0u8; 34], [0f32; 32]);
/// quantize_kv(Tensor::bshd(&k, shape)?, TensorMut::blocks(&mut blocks, DType::Q8_0, shape)?, None)?;
/// let blocks = Tensor::blocks(&blocks, DType::Q8_0, shape)?;
/// dequantize_kv(blocks, None, TensorMut::bshd(&mut back, shape)?)?;
/// assert!(back.iter().all(|x| (x - 0.5).abs() < 1e-3));
/// # Ok::<(), fulmen::Error>(())
/// ```
pub fn dequantize_kv(
    quantized: Tensor<'_>,
    scale: Option<Tensor<'_>>,
    numbers: TensorMut<'_>,
) -> Result<()> {
    let scale = scale.map(|scale| scale.raw);
    // SAFETY: views are of memory that lives as long as they do, the written one's of nobody else.
    check(unsafe {
        sys::fulmen_dequantize_kv(&quantized.raw, pointer(scale.as_ref()), &numbers.raw)
    })
}

fn quantize(
    numbers: &sys::fulmen_tensor,
    quantized: &sys::fulmen_tensor,
    scale: Option<&sys::fulmen_tensor>,
    given: bool,
) -> Result<()> {
    // SAFETY: as above; a scale that is written is borrowed for itself alone.
    check(unsafe { sys::fulmen_quantize_kv(numbers, quantized, pointer(scale), given) })
}

fn pointer(scale: Option<&sys::fulmen_tensor>) -> *const sys::fulmen_tensor {
    scale.map_or(ptr::null(), ptr::from_ref)
}

//! Types of elements.

use half::{bf16, f16};

use fulmen_sys as sys;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// `f32`
    F32,
    /// [`half::f16`]
    F16,
    /// [`half::bf16`]
    Bf16,
    /// `bool`, or `u8`, of which 0 is false
    Bool,
    /// `i32`
    I32,
    /// `i8`: of quantized keys and values alone, as those below
    I8,
    /// [`F8E4M3`]
    F8E4M3,
    /// [`F8E5M2`]
    F8E5M2,
    /// [`F8E4M3Fnuz`]
    F8E4M3Fnuz,
    /// [`F8E5M2Fnuz`]
    F8E5M2Fnuz,
    /// GGML's blocks of 32 numbers ([`crate::Tensor::blocks`]): a scale and bytes
    Q8_0,
    /// A scale and 4 bits a number
    Q4_0,
    /// A scale, a minimum and 4 bits a number
    Q4_1,
    /// A scale and 5 bits a number
    Q5_0,
    /// A scale, a minimum and 5 bits a number
    Q5_1,
}

/// Numbers of a block of [`DType::Q8_0`] and its kin.
pub(crate) const BLOCK_NUMBERS: usize = 32;

impl DType {
    /// Bytes of an element; of a block format 1, as its strides count bytes.
    ///
    /// ```
    /// assert_eq!(fulmen::DType::Bf16.size(), 2);
    /// ```
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            _ => 1,
        }
    }

    /// Bytes of a block of 32 numbers; `None` where the type has no blocks.
    ///
    /// ```
    /// assert_eq!(fulmen::DType::Q4_0.block_bytes(), Some(18));
    /// ```
    pub const fn block_bytes(self) -> Option<usize> {
        match self {
            Self::Q8_0 => Some(34),
            Self::Q4_0 => Some(18),
            Self::Q4_1 => Some(20),
            Self::Q5_0 => Some(22),
            Self::Q5_1 => Some(24),
            _ => None,
        }
    }

    pub(crate) const fn number(self) -> i32 {
        (match self {
            Self::F32 => sys::FULMEN_FP32,
            Self::F16 => sys::FULMEN_FP16,
            Self::Bf16 => sys::FULMEN_BF16,
            Self::Bool => sys::FULMEN_BOOLEAN,
            Self::I32 => sys::FULMEN_INT32,
            Self::I8 => sys::FULMEN_INT8,
            Self::F8E4M3 => sys::FULMEN_FP8_E4M3,
            Self::F8E5M2 => sys::FULMEN_FP8_E5M2,
            Self::F8E4M3Fnuz => sys::FULMEN_FP8_E4M3FNUZ,
            Self::F8E5M2Fnuz => sys::FULMEN_FP8_E5M2FNUZ,
            Self::Q8_0 => sys::FULMEN_Q8_0,
            Self::Q4_0 => sys::FULMEN_Q4_0,
            Self::Q4_1 => sys::FULMEN_Q4_1,
            Self::Q5_0 => sys::FULMEN_Q5_0,
            Self::Q5_1 => sys::FULMEN_Q5_1,
        }) as i32
    }

    pub(crate) fn from_number(number: i32) -> Option<Self> {
        [
            Self::F32,
            Self::F16,
            Self::Bf16,
            Self::Bool,
            Self::I32,
            Self::I8,
            Self::F8E4M3,
            Self::F8E5M2,
            Self::F8E4M3Fnuz,
            Self::F8E5M2Fnuz,
            Self::Q8_0,
            Self::Q4_0,
            Self::Q4_1,
            Self::Q5_0,
            Self::Q5_1,
        ]
        .into_iter()
        .find(|dtype| dtype.number() == number)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Rust's types of elements: `f32`, [`half::f16`], [`half::bf16`], `i32`, `i8`, `bool`, `u8`,
/// [`F8E4M3`], [`F8E5M2`], [`F8E4M3Fnuz`] and [`F8E5M2Fnuz`].
///
/// ```
/// use fulmen::{DType, Element};
/// assert_eq!(<half::f16 as Element>::DTYPE, DType::F16);
/// ```
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The library's name of the type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),*) => {
        $(
            impl sealed::Sealed for $type {}
            impl Element for $type {
                const DTYPE: DType = DType::$dtype;
            }
        )*
    };
}

elements!(f32 => F32, f16 => F16, bf16 => Bf16, i32 => I32, i8 => I8, bool => Bool, u8 => Bool);

/// A number of 8 bits, as the struct's only field holds them: sign, exponent, digits.
macro_rules! fp8 {
    ($($(#[$doc:meta])* $name:ident: $digits:literal, $bias:literal, $nan:expr, $example:literal;)*) => {
        $(
            $(#[$doc])*
            ///
            #[doc = $example]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
            #[repr(transparent)]
            pub struct $name(pub u8);

            impl From<$name> for f32 {
                fn from(number: $name) -> Self {
                    small_float(number.0, $digits, $bias, $nan)
                }
            }
            impl sealed::Sealed for $name {}
            impl Element for $name {
                const DTYPE: DType = DType::$name;
            }
            impl Number for $name {}
        )*
    };
}

fp8! {
    /// fp8 with 4 bits of exponent, up to 448; no infinity. torch's `float8_e4m3fn`.
    F8E4M3: 3, 7, |bits| (bits & 0x7F == 0x7F).then_some(f32::NAN), "```
assert_eq!(f32::from(fulmen::F8E4M3(0x7E)), 448.);
```";
    /// fp8 with 5 bits of exponent, up to 57344, and infinities: the upper half of an
    /// [`half::f16`].
    F8E5M2: 2, 15, |bits| (bits & 0x7C == 0x7C).then(|| f32::from(f16::from_bits(u16::from(bits) << 8))), "```
assert_eq!(f32::from(fulmen::F8E5M2(0x3C)), 1.);
```";
    /// [`F8E4M3`] of gfx942: up to 240, no infinity, no -0, whose bits are NaN.
    F8E4M3Fnuz: 3, 8, |bits| (bits == 0x80).then_some(f32::NAN), "```
assert_eq!(f32::from(fulmen::F8E4M3Fnuz(0x7F)), 240.);
```";
    /// [`F8E5M2`] of gfx942: the same.
    F8E5M2Fnuz: 2, 16, |bits| (bits == 0x80).then_some(f32::NAN), "```
assert_eq!(f32::from(fulmen::F8E5M2Fnuz(0x7F)), 57344.);
```";
}

/// special: infinities and NaN.
fn small_float(bits: u8, digits: i32, bias: i32, special: fn(u8) -> Option<f32>) -> f32 {
    if let Some(number) = special(bits) {
        return number;
    }
    let magnitude = i32::from(bits & 0x7F);
    let (exponent, fraction) = (magnitude >> digits, magnitude & ((1 << digits) - 1));
    let (significand, exponent) = match exponent {
        0 => (fraction, 1),
        _ => (fraction + (1 << digits), exponent),
    };
    let size = significand as f32 * f32::powi(2., exponent - bias - digits);
    if bits & 0x80 == 0 {
        size
    } else {
        -size
    }
}

/// Elements of which any bits are a number: all but `bool`. They are what a
/// [`crate::DeviceBuffer`] is copied to.
///
/// ```
/// fn sum<T: fulmen::Number + Into<f32>>(data: &[T]) -> f32 {
///     data.iter().map(|&x| x.into()).sum()
/// }
/// assert_eq!(sum(&[half::f16::ONE; 3]), 3.);
/// ```
pub trait Number: Element {}

impl Number for f32 {}
impl Number for f16 {}
impl Number for bf16 {}
impl Number for i32 {}
impl Number for i8 {}
impl Number for u8 {}

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
    /// `i8`: of quantized keys and values alone
    I8,
}

impl DType {
    /// Bytes of an element.
    ///
    /// ```
    /// assert_eq!(fulmen::DType::Bf16.size(), 2);
    /// ```
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Bool | Self::I8 => 1,
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
        }) as i32
    }

    pub(crate) fn from_number(number: i32) -> Option<Self> {
        [Self::F32, Self::F16, Self::Bf16, Self::Bool, Self::I32, Self::I8]
            .into_iter()
            .find(|dtype| dtype.number() == number)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Rust's types of elements: `f32`, [`half::f16`], [`half::bf16`], `i32`, `i8`, `bool` and
/// `u8`.
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

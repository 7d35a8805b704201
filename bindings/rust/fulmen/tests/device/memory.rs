//! The device, and copies of host tensors in its memory.

use std::ffi::c_void;

use fulmen::{DeviceBuffer, Element, Number, Result, Stream, Tensor, TensorMut};

use crate::numbers::{numbers, product, Rounded};

/// The device of these tests.
pub fn device() -> String {
    let name = std::env::var("FULMEN_TEST_DEVICE").unwrap_or("emulated:sm_80".to_owned());
    let all = fulmen::devices().expect("devices are listed");
    let found = all.iter().find(|device| device.name == name);
    match found.map(|device| &device.reason) {
        Some(None) => name,
        Some(Some(reason)) => panic!("{name} cannot be used: {reason}"),
        None => panic!("{name} is not among the devices: {all:?}"),
    }
}

/// The device's default stream.
pub fn stream() -> Stream {
    // SAFETY: tests synchronise with it before their memory is freed.
    unsafe { Stream::from_raw(std::ptr::null_mut()) }
}

/// A row-major tensor on the host and the same on the device.
pub struct Both<T> {
    pub host: Vec<T>,
    shape: [usize; 4],
    memory: DeviceBuffer,
}

impl<T: Element> Both<T> {
    pub fn new(host: Vec<T>, shape: [usize; 4]) -> Result<Self> {
        let mut memory = DeviceBuffer::new(&device(), host.len() * T::DTYPE.size())?;
        memory.copy_from(&host)?;
        Ok(Self {
            host,
            shape,
            memory,
        })
    }

    pub fn view(&self) -> Result<Tensor<'_>> {
        Tensor::row_major(&self.host, self.shape)
    }

    pub fn view_mut(&mut self) -> Result<TensorMut<'_>> {
        TensorMut::row_major(&mut self.host, self.shape)
    }

    /// The device's memory as a call's input.
    pub fn on_device(&self) -> Result<Tensor<'_>> {
        let (data, strides) = (self.memory.as_ptr(), self.view()?.strides());
        // SAFETY: the buffer has the shape's elements, is borrowed, and calls run on its device.
        unsafe { Tensor::from_raw(data.cast_const(), T::DTYPE, self.shape, strides) }
    }

    /// The device's memory as a call's output.
    pub fn on_device_mut(&mut self) -> Result<TensorMut<'_>> {
        let (data, strides): (*mut c_void, _) = (self.memory.as_ptr(), self.view()?.strides());
        // SAFETY: as above; nothing else uses it while it is borrowed.
        unsafe { TensorMut::from_raw(data, T::DTYPE, self.shape, strides) }
    }
}

impl<T: Number> Both<T> {
    /// Copies what the device has computed to the host.
    pub fn fetch(&mut self) -> Result<()> {
        self.memory.copy_to(&mut self.host)
    }
}

/// Seeded numbers from -1 to 1.
pub fn random<T: Rounded>(seed: u64, shape: [usize; 4]) -> Result<Both<T>> {
    let values = numbers(seed, product(shape));
    Both::new(values.into_iter().map(T::from_f32).collect(), shape)
}

/// An output, full of NaN.
pub fn output<T: Rounded>(shape: [usize; 4]) -> Result<Both<T>> {
    Both::new(vec![T::from_f32(f32::NAN); product(shape)], shape)
}

pub fn one_dim<T: Element>(values: &[T]) -> Result<Both<T>> {
    Both::new(values.to_vec(), [1, 1, 1, values.len()])
}

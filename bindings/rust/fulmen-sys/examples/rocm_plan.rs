//! The program of the public ROCm plan, as it was drawn: a params struct, two C functions, fp16
//! device memory, forward and backward. It runs on the device that `FULMEN_DEVICE` names, `hip:0`
//! say, or on the CPU.
//!
//! `cargo run -p fulmen-sys --example rocm_plan`

use std::ffi::{c_void, CStr};
use std::mem::size_of_val;
use std::ptr;

use fulmen_sys as sys;
use sys::compat::{flash_attn_backward, flash_attn_forward, FlashAttnParams};

/// Memory of the default device.
struct DeviceTensor {
    memory: *mut c_void,
    bytes: usize,
}

fn check(status: i32) -> Result<(), String> {
    if status == sys::FULMEN_OK as i32 {
        return Ok(());
    }
    // SAFETY: the sentence is valid until this thread's next call.
    let sentence = unsafe { CStr::from_ptr(sys::fulmen_last_error()) };
    Err(sentence.to_string_lossy().into_owned())
}

impl DeviceTensor {
    fn new(values: &[u16]) -> Result<Self, String> {
        let bytes = size_of_val(values);
        let mut memory = ptr::null_mut();
        // SAFETY: the device gives as many bytes as are copied there.
        unsafe {
            check(sys::fulmen_device_allocate(ptr::null(), bytes, &mut memory))?;
            let from = values.as_ptr().cast();
            check(sys::fulmen_device_copy(ptr::null(), memory, from, bytes))?;
        }
        Ok(Self { memory, bytes })
    }

    fn read(&self) -> Result<Vec<u16>, String> {
        let mut values = vec![0u16; self.bytes / 2];
        let to = values.as_mut_ptr().cast();
        // SAFETY: both have so many bytes.
        check(unsafe { sys::fulmen_device_copy(ptr::null(), to, self.memory, self.bytes) })?;
        Ok(values)
    }
}

impl Drop for DeviceTensor {
    fn drop(&mut self) {
        // SAFETY: it is the default device's, and nobody else has it.
        unsafe { sys::fulmen_device_free(ptr::null(), self.memory) }
    }
}

fn main() -> Result<(), String> {
    let params = FlashAttnParams {
        batch_size: 2,
        seq_len: 64,
        num_heads: 4,
        head_dim: 64,
        is_causal: true,
        softmax_scale: 0.125,
    };
    let n = params.batch_size * params.seq_len * params.num_heads * params.head_dim;
    // The bits of fp16: 0, 1 and 2.
    let (zero, one, two) = (0u16, 0x3c00u16, 0x4000u16);
    let q = DeviceTensor::new(&vec![one; n])?;
    let k = DeviceTensor::new(&vec![zero; n])?;
    let v = DeviceTensor::new(&vec![two; n])?;
    let out = DeviceTensor::new(&vec![zero; n])?;
    let dout = DeviceTensor::new(&vec![one; n])?;
    let [dq, dk, dv] = [0; 3].map(|_| DeviceTensor::new(&vec![zero; n]));
    let (dq, dk, dv) = (dq?, dk?, dv?);
    // SAFETY: all tensors have n elements.
    unsafe {
        check(flash_attn_forward(
            q.memory, k.memory, v.memory, out.memory, &params,
        ))?;
        check(flash_attn_backward(
            dout.memory,
            q.memory,
            k.memory,
            v.memory,
            out.memory,
            dq.memory,
            dk.memory,
            dv.memory,
            &params,
        ))?;
    }
    let (out, dv) = (out.read()?, dv.read()?);
    println!("every output is 2: {}", out.iter().all(|x| *x == two));
    // The last key of a causal mask is attended by the last query alone, with 1 / 64: 0x2400.
    println!("dv of the last key is 1 / 64: {}", dv[n - 1] == 0x2400);
    Ok(())
}

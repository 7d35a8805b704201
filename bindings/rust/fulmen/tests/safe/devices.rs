//! Memory of a device of its own: the emulated GPU's, where the library was built with it.

use fulmen::{devices, Attention, DType, DeviceBuffer, Error, Forward, Result, Stream};
use fulmen::{Tensor, TensorMut};

use crate::numbers::numbers;

const SHAPE: [usize; 4] = [1, 32, 1, 16];
const STRIDES: [usize; 4] = [512, 16, 16, 1];
const N: usize = 512;

#[test]
fn a_device_with_memory_of_its_own() -> Result<()> {
    let device = "emulated:gfx1100";
    let found = devices()?.into_iter().find(|d| d.name == device);
    let found = found.unwrap_or_else(|| panic!("{device} is not among the devices"));
    assert!(!found.host_memory);
    if let Some(reason) = found.reason {
        // Without Boost or a compiler there is no emulator, and the library says so.
        let unavailable = Attention::builder().device(device).build()?;
        let (q, mut out) = (vec![0f32; N], vec![0f32; N]);
        let q = Tensor::bshd(&q, SHAPE)?;
        let out = TensorMut::bshd(&mut out, SHAPE)?;
        let error = unavailable.plan(&Forward::new(q, q, q, out)).unwrap_err();
        assert!(
            matches!(&error, Error::Unavailable(m) if m.contains(&reason)),
            "{error:?}"
        );
        return Ok(());
    }
    let attention = Attention::builder().device(device).build()?;
    let values = numbers(1, N);
    let mut q = DeviceBuffer::new(device, 4 * N)?;
    let out = DeviceBuffer::new(device, 4 * N)?;
    q.copy_from(&values)?;
    let zeros = vec![0f32; N];
    let mut result = vec![1f32; N];
    out.copy_to(&mut result)?;
    assert_eq!(result, zeros);
    assert!(q.copy_from(&vec![0f32; N + 1]).is_err());

    // SAFETY: the buffers have N elements, live longer, and the calls run on their device.
    let view = unsafe { Tensor::from_raw(q.as_ptr(), DType::F32, SHAPE, STRIDES) }?;
    let out_view = unsafe { TensorMut::from_raw(out.as_ptr(), DType::F32, SHAPE, STRIDES) }?;
    let mut call = Forward::new(view, view, view, out_view);
    let plan = attention.plan(&call)?;
    assert_eq!(plan.device(), device);
    let mut workspace = plan.workspace()?;
    plan.run(&mut call, Some(&mut workspace))?;
    // SAFETY: the default stream.
    let stream = unsafe { Stream::from_raw(std::ptr::null_mut()) };
    plan.run_in(&stream, &mut call, Some(&mut workspace), None)?;
    attention.forward_in(&stream, &mut call)?;
    stream.synchronize(device)?;
    out.copy_to(&mut result)?;

    let mut expected = vec![0f32; N];
    let host = Tensor::bshd(&values, SHAPE)?;
    let mut host_call = Forward::new(host, host, host, TensorMut::bshd(&mut expected, SHAPE)?);
    Attention::default().forward(&mut host_call)?;

    // Ordinary memory is refused, by name, and so is another device's workspace.
    let error = plan.run(&mut host_call, None).unwrap_err();
    assert!(error.message().contains('q'), "{error}");
    let on_cpu = Attention::default().plan(&host_call)?;
    let error = on_cpu
        .run(&mut host_call, Some(&mut workspace))
        .unwrap_err();
    assert!(
        error
            .message()
            .contains("the workspace is memory of emulated"),
        "{error}"
    );
    for (x, y) in result.iter().zip(&expected) {
        assert!((x - y).abs() < 1e-4, "{x}, {y}");
    }
    Ok(())
}

#[test]
fn devices_that_cannot_be_used_say_why() -> Result<()> {
    for device in devices()? {
        assert!(
            device.reason.map_or(true, |reason| !reason.is_empty()),
            "{}",
            device.name
        );
    }
    Ok(())
}

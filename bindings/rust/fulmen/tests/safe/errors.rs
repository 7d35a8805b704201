//! What is refused, and in which words.

use fulmen::half::f16;
use fulmen::{Attention, DType, Error, Forward, Result, Tensor, TensorMut};

fn refused(result: Result<()>, words: &str) {
    match result {
        Err(Error::InvalidArgument(message)) => assert!(message.contains(words), "{message}"),
        other => panic!("{other:?}; an error about {words} is right"),
    }
}

#[test]
fn views_that_leave_their_slice() {
    let mut data = [0f32; 24];
    for (shape, strides) in [
        ([1, 2, 3, 5], [30, 15, 5, 1]),
        ([1, 2, 3, 4], [24, 13, 4, 1]),
        ([2, 1, 1, 24], [1, 0, 0, 1]),
        ([1, 1, 1, 25], [0, 0, 0, 1]),
        ([usize::MAX, 2, 1, 1], [1, 1, 1, 1]),
        (
            [2, 2, 2, 2],
            [usize::MAX / 4, usize::MAX / 4, usize::MAX / 4, 1],
        ),
        ([2, 1, 1, 1], [i64::MAX as usize, 1, 1, 1]),
    ] {
        assert!(
            Tensor::strided(&data, shape, strides).is_err(),
            "{shape:?} {strides:?}"
        );
        assert!(
            TensorMut::strided(&mut data, shape, strides).is_err(),
            "{shape:?} {strides:?}"
        );
    }
    assert!(Tensor::row_major(&data, [usize::MAX, usize::MAX, 2, 2]).is_err());
    assert!(Tensor::bhsd(&data, [2, 2, 2, 4]).is_err());
    assert!(Tensor::two_dims(&data, 5, 5).is_err());
    // To the last element, and nothing at all, are inside.
    assert!(Tensor::strided(&data, [2, 2, 2, 4], [4, 4, 12, 1]).is_ok());
    assert!(Tensor::strided(&data, [0, 9, 9, 9], [9, 9, 9, 1]).is_ok());
}

/// To the library a tensor of zeros only has the plan's shape: no view of a slice may be one.
#[test]
#[cfg(target_pointer_width = "64")]
fn blocks_of_more_numbers_than_memory_has() {
    for dim in [usize::MAX - 31, 1 << 63] {
        for format in [DType::Q8_0, DType::Q4_0] {
            let error = Tensor::blocks(&[], format, [0, 1, 1, dim]).map(|_| ());
            refused(error, "a shape or strides of more than 63 bits");
        }
    }
}

#[test]
fn an_empty_view_is_not_taken_for_the_plans_shape() -> Result<()> {
    let (q, mut out) = (vec![1f32; 64], vec![0f32; 64]);
    let shape = [1, 4, 1, 16];
    let q = Tensor::bshd(&q, shape)?;
    let call = Forward::new(q, q, q, TensorMut::bshd(&mut out, shape)?);
    let plan = Attention::default().plan(&call)?;
    let nothing: [f32; 0] = [];
    let empty = Tensor::strided(&nothing, [0; 4], [0; 4])?;
    assert_ne!(empty.strides(), [0; 4]);
    let out = TensorMut::bshd(&mut out, shape)?;
    refused(
        plan.run(&mut Forward::new(q, empty, q, out), None),
        "k.shape is [0, 0, 0, 0]",
    );
    Ok(())
}

#[test]
fn shapes_strides_and_dtypes() -> Result<()> {
    let shape = [1, 4, 2, 8];
    let (data, mut out) = (vec![0f32; 64], vec![0f32; 64]);
    let attention = Attention::default();
    let q = Tensor::bshd(&data, shape)?;
    let mut run = |q, k, v| {
        attention.forward(&mut Forward::new(
            q,
            k,
            v,
            TensorMut::bshd(&mut out, shape)?,
        ))
    };
    refused(run(q, Tensor::bshd(&data, [1, 8, 1, 8])?, q), "v.shape");
    refused(
        run(q, Tensor::bshd(&[1i32; 64], shape)?, q),
        "k.dtype is int32",
    );
    refused(
        run(Tensor::bshd(&[1i32; 64], shape)?, q, q),
        "q.dtype is int32",
    );
    let apart = Tensor::strided(&data, [1, 4, 2, 4], [64, 16, 8, 2])?;
    refused(run(apart, q, q), "q.strides");
    // An output that overlaps itself.
    let twice = TensorMut::strided(&mut out, shape, [0, 8, 0, 1])?;
    refused(
        attention.forward(&mut Forward::new(q, q, q, twice)),
        "overlaps itself",
    );
    Ok(())
}

#[test]
fn options() -> Result<()> {
    let (data, mut out) = (vec![0f32; 64], vec![0f32; 64]);
    let q = Tensor::bshd(&data, [1, 4, 2, 8])?;
    let mut run = |attention: Result<Attention>| {
        let out = TensorMut::bshd(&mut out, [1, 4, 2, 8])?;
        attention?.forward(&mut Forward::new(q, q, q, out))
    };
    refused(
        run(Attention::builder().dropout(1.).build()),
        "dropout is 1",
    );
    refused(
        run(Attention::builder().softcap(-1.).build()),
        "softcap is -1",
    );
    refused(
        run(Attention::builder().softmax_scale(f32::NAN).build()),
        "softmax_scale is NaN",
    );
    refused(
        run(Attention::builder().kernel("cpu.none").build()),
        "cpu.none",
    );
    refused(
        run(Attention::builder().device("c\0pu").build()),
        "a name has no NUL",
    );
    let error = run(Attention::builder().device("tpu").build()).unwrap_err();
    assert!(matches!(&error, Error::Unavailable(m) if m.contains("tpu")));
    Ok(())
}

#[test]
fn a_forced_kernel_that_cannot() -> Result<()> {
    let (data, mut out) = (vec![0f32; 64], vec![0f32; 64]);
    let q = Tensor::bshd(&data, [1, 4, 2, 8])?;
    let gradients = Attention::builder()
        .kernel("cpu.reference.backward")
        .build()?;
    let out = TensorMut::bshd(&mut out, [1, 4, 2, 8])?;
    let error = gradients
        .forward(&mut Forward::new(q, q, q, out))
        .unwrap_err();
    assert!(
        error.message().contains("cpu.reference.backward"),
        "{error}"
    );
    assert!(!matches!(error, Error::Internal(_)), "{error:?}");
    Ok(())
}

#[test]
fn dtypes_have_sizes() {
    let all = [
        DType::F32,
        DType::F16,
        DType::Bf16,
        DType::Bool,
        DType::I32,
        DType::I8,
    ];
    assert_eq!(all.map(DType::size), [4, 2, 2, 1, 4, 1]);
}

#[test]
fn keys_of_another_float_are_refused() -> Result<()> {
    let (q, mut out) = (vec![0.5f32; 64], vec![0f32; 64]);
    let half = vec![f16::ONE; 64];
    let shape = [1, 4, 1, 16];
    let (rows, keys) = (Tensor::bshd(&q, shape)?, Tensor::bshd(&half, shape)?);
    let mut call = Forward::new(rows, keys, keys, TensorMut::bshd(&mut out, shape)?);
    let error = Attention::default().forward(&mut call).unwrap_err();
    let said = "k.dtype is fp16, q.dtype is fp32: ";
    assert!(
        matches!(&error, Error::InvalidArgument(m) if m.starts_with(said)),
        "{error:?}"
    );
    Ok(())
}

/// All values are alike, so the output is one of them times the scale.
#[test]
fn keys_and_values_in_8_bits() -> Result<()> {
    let (q, mut out) = (vec![0.5f32; 64], vec![0f32; 64]);
    let (codes, scale) = (vec![-3i8; 64], [0.5f32]);
    let shape = [1, 4, 1, 16];
    let keys = Tensor::bshd(&codes, shape)?;
    let mut call = Forward::new(
        Tensor::bshd(&q, shape)?,
        keys,
        keys,
        TensorMut::bshd(&mut out, shape)?,
    )
    .v_scale(Tensor::one_dim(&scale)?);
    Attention::default().forward(&mut call)?;
    assert!(out.iter().all(|&x| x == -1.5), "{out:?}");
    Ok(())
}

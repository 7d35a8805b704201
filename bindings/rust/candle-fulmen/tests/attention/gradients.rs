//! The backward pass: against candle's own, and against finite differences.

use std::thread;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fulmen::{
    flash_attn, flash_attn_with_dropout, flash_attn_with_mask, flash_attn_with_sinks, Attention,
    FlashAttn,
};

use crate::models::Numbers;
use crate::reference::{assert_close, attention, values, Options};

const SCALE: f32 = 0.3;

/// 2 sequences, 5 queries, 7 keys, 4 heads on 2.
fn variables() -> [Var; 3] {
    let mut numbers = Numbers::new(21);
    let q = numbers.var(&[2, 5, 4, 16]);
    let k = numbers.var(&[2, 7, 2, 16]);
    [q, k, numbers.var(&[2, 7, 2, 16])]
}

/// A loss whose gradient differs from element to element.
fn loss(out: &Tensor) -> Result<Tensor> {
    let weights = Numbers::new(2).tensor(out.dims()).to_dtype(out.dtype())?;
    (out * weights)?.to_dtype(DType::F32)?.sum_all()
}

/// Compares the gradients of all variables.
#[track_caller]
fn compare(what: &str, ours: &Tensor, reference: &Tensor, variables: &[&Var], tolerance: f32) {
    let ours = loss(ours).unwrap().backward().unwrap();
    let reference = loss(reference).unwrap().backward().unwrap();
    for (n, variable) in variables.iter().enumerate() {
        let (ours, reference) = (
            ours.get(variable).unwrap(),
            reference.get(variable).unwrap(),
        );
        assert_eq!(ours.dtype(), variable.dtype());
        assert_close(&format!("{what}, variable {n}"), ours, reference, tolerance);
    }
}

#[test]
fn of_q_k_and_v() -> Result<()> {
    let [q, k, v] = variables();
    let slopes = Tensor::new(&[0.5f32, 0.25, 0.125, 0.0625], &Device::Cpu)?;
    for (what, attention_of, softcap, tolerance) in [
        ("plain", Attention::new(), 0., 1e-4),
        ("softcap", Attention::new().softcap(2.), 2., 1e-3),
    ] {
        for (left, right) in [(None, None), (None, Some(0)), (Some(3), Some(1))] {
            for slopes in [None, Some(&slopes)] {
                let mut ours = attention_of
                    .clone()
                    .softmax_scale(SCALE)
                    .window(left, right);
                if let Some(slopes) = slopes {
                    ours = ours.alibi_slopes(slopes);
                }
                let options = Options {
                    scale: f64::from(SCALE),
                    left,
                    right,
                    softcap,
                    slopes: slopes.cloned(),
                    ..Options::default()
                };
                let what = format!("{what}, {left:?}, {right:?}, {}", slopes.is_some());
                let ours = ours.run(&q, &k, &v)?;
                let reference = attention(&q, &k, &v, &options)?;
                compare(&what, &ours, &reference, &[&q, &k, &v], tolerance);
            }
        }
    }
    Ok(())
}

#[test]
fn of_every_dtype() -> Result<()> {
    for (dtype, tolerance) in [(DType::F16, 1e-2), (DType::BF16, 6e-2)] {
        let [q, k, v] = variables()
            .map(|variable| Var::from_tensor(&variable.to_dtype(dtype).unwrap()).unwrap());
        let options = Options {
            scale: f64::from(SCALE),
            right: Some(0),
            ..Options::default()
        };
        let ours = flash_attn(&q, &k, &v, SCALE, true)?;
        let reference = attention(&q, &k, &v, &options)?;
        compare(
            &format!("{dtype:?}"),
            &ours,
            &reference,
            &[&q, &k, &v],
            tolerance,
        );
    }
    Ok(())
}

/// A bias in each shape it may be stored in, alone and with q, k and v.
#[test]
fn of_masks() -> Result<()> {
    let [q, k, v] = variables();
    let constants = [&q, &k, &v].map(|variable| variable.as_detached_tensor());
    let mut numbers = Numbers::new(22);
    for dims in [
        &[7][..],
        &[5, 7],
        &[4, 5, 7],
        &[2, 4, 5, 7],
        &[2, 1, 1, 7],
        &[1, 4, 5, 7],
    ] {
        let bias = numbers.var(dims);
        let options = Options {
            scale: f64::from(SCALE),
            bias: Some(bias.as_tensor().clone()),
            right: Some(0),
            ..Options::default()
        };
        let what = format!("{dims:?}");
        let reference = attention(&q, &k, &v, &options)?;
        let ours = flash_attn_with_mask(&q, &k, &v, Some(&bias), SCALE, true)?;
        compare(&what, &ours, &reference, &[&q, &k, &v, &bias], 1e-4);

        let [q, k, v] = &constants;
        let ours = flash_attn_with_mask(q, k, v, Some(&bias), SCALE, true)?;
        compare(&what, &ours, &reference, &[&bias], 1e-4);
    }
    // A mask that is not trained.
    let bias = numbers.tensor(&[5, 7]);
    let options = Options {
        scale: f64::from(SCALE),
        bias: Some(bias.clone()),
        ..Options::default()
    };
    let ours = flash_attn_with_mask(&q, &k, &v, Some(&bias), SCALE, false)?;
    let reference = attention(&q, &k, &v, &options)?;
    compare("constant", &ours, &reference, &[&q, &k, &v], 1e-4);
    Ok(())
}

#[test]
fn of_sinks_alone_and_with_a_mask() -> Result<()> {
    let [q, k, v] = variables();
    let mut numbers = Numbers::new(23);
    let sinks = numbers.var(&[4]);
    let bias = numbers.tensor(&[5, 7]);
    let mut options = Options {
        scale: f64::from(SCALE),
        left: Some(3),
        right: Some(0),
        sinks: Some(sinks.as_tensor().clone()),
        ..Options::default()
    };
    let ours = flash_attn_with_sinks(&q, &k, &v, &sinks, SCALE, Some(3), Some(0))?;
    let reference = attention(&q, &k, &v, &options)?;
    compare("sinks", &ours, &reference, &[&q, &k, &v, &sinks], 1e-4);

    options.bias = Some(bias.clone());
    let with_mask = Attention::new()
        .softmax_scale(SCALE)
        .window(Some(3), Some(0))
        .sinks(&sinks);
    let ours = with_mask.clone().mask(&bias).run(&q, &k, &v)?;
    let reference = attention(&q, &k, &v, &options)?;
    compare(
        "sinks, mask",
        &ours,
        &reference,
        &[&q, &k, &v, &sinks],
        1e-4,
    );

    let bias = Var::from_tensor(&bias)?;
    options.bias = Some(bias.as_tensor().clone());
    let ours = with_mask.mask(&bias).run(&q, &k, &v)?;
    let reference = attention(&q, &k, &v, &options)?;
    let all = [&q, &k, &v, &sinks, &bias];
    compare("sinks, trained mask", &ours, &reference, &all, 1e-4);
    Ok(())
}

/// The derivative by each element, of a loss that is a function of one variable.
fn finite_differences(variable: &Var, loss: impl Fn() -> Result<Tensor>) -> Result<Tensor> {
    let start = variable.as_detached_tensor().copy()?;
    let numbers = values(&start);
    let step = 1e-2;
    let mut derivatives = Vec::with_capacity(numbers.len());
    for at in 0..numbers.len() {
        let moved = |by: f32| -> Result<f32> {
            let mut numbers = numbers.clone();
            numbers[at] += by;
            variable.set(&Tensor::from_vec(numbers, start.dims(), &Device::Cpu)?)?;
            loss()?.to_scalar()
        };
        derivatives.push((moved(step)? - moved(-step)?) / (2. * step));
    }
    variable.set(&start)?;
    Tensor::from_vec(derivatives, start.dims(), &Device::Cpu)
}

/// Dropout's mask is the same forward and backward: candle has nothing to compare with.
#[test]
fn by_finite_differences() -> Result<()> {
    let mut numbers = Numbers::new(24);
    let q = numbers.var(&[1, 3, 2, 4]);
    let k = numbers.var(&[1, 4, 1, 4]);
    let v = numbers.var(&[1, 4, 1, 4]);
    for dropout in [0., 0.3] {
        let out_loss = || {
            loss(&flash_attn_with_dropout(
                &q, &k, &v, 0.5, true, dropout, 5, 9,
            )?)
        };
        let gradients = out_loss()?.backward()?;
        for (name, variable) in [("q", &q), ("k", &k), ("v", &v)] {
            let reference = finite_differences(variable, out_loss)?;
            let ours = gradients.get(variable).unwrap();
            assert_close(
                &format!("{name}, dropout {dropout}"),
                ours,
                &reference,
                1e-3,
            );
        }
    }
    Ok(())
}

#[test]
fn only_what_is_tracked_is_computed() -> Result<()> {
    let [q, k, v] = variables();
    let (k_constant, v_constant) = (k.as_detached_tensor(), v.as_detached_tensor());
    let ours = loss(&flash_attn(&q, &k_constant, &v_constant, SCALE, true)?)?.backward()?;
    let all = loss(&flash_attn(&q, &k, &v, SCALE, true)?)?.backward()?;
    assert_eq!(values(ours.get(&q).unwrap()), values(all.get(&q).unwrap()));
    assert!(ours.get(&k_constant).is_none());
    assert!(!flash_attn(&k_constant, &k_constant, &v_constant, SCALE, true)?.track_op());
    Ok(())
}

/// The gradient of a sum has stride 0 in every dim; that of views goes back through them.
#[test]
fn of_a_sum_and_of_views() -> Result<()> {
    let mut numbers = Numbers::new(25);
    let packed = numbers.var(&[2, 5, 3, 4, 16]);
    let slot = |n| packed.narrow(2, n, 1)?.squeeze(2);
    let [q, k, v] = [slot(0)?, slot(1)?, slot(2)?];
    let options = Options {
        scale: f64::from(SCALE),
        ..Options::default()
    };
    let ours = flash_attn(&q, &k, &v, SCALE, false)?
        .sum_all()?
        .backward()?;
    let reference = attention(&q, &k, &v, &options)?.sum_all()?.backward()?;
    let (ours, reference) = (ours.get(&packed).unwrap(), reference.get(&packed).unwrap());
    assert_close("packed", ours, reference, 1e-4);
    Ok(())
}

#[test]
fn one_tensor_as_q_k_and_v() -> Result<()> {
    let x = Numbers::new(26).var(&[1, 6, 2, 16]);
    let options = Options {
        scale: f64::from(SCALE),
        right: Some(0),
        ..Options::default()
    };
    let ours = flash_attn(&x, &x, &x, SCALE, true)?;
    compare("", &ours, &attention(&x, &x, &x, &options)?, &[&x], 1e-4);
    Ok(())
}

/// A graph may be gone through more than once, and by threads at the same time.
#[test]
fn of_one_graph_on_many_threads() -> Result<()> {
    let [q, k, v] = variables();
    let bias = Numbers::new(27).var(&[5, 7]);
    let out = flash_attn_with_mask(&q, &k, &v, Some(&bias), SCALE, false)?;
    let gradients = |factor: f64| -> Result<Vec<Vec<f32>>> {
        let gradients = (loss(&out)? * factor)?.backward()?;
        let of = |variable: &Var| values(gradients.get(variable).unwrap());
        Ok([&q, &k, &v, &bias].map(of).into())
    };
    let alone = [gradients(1.)?, gradients(2.)?];
    assert_ne!(alone[0], alone[1]);
    thread::scope(|scope| {
        for n in 0..4 {
            let (gradients, alone) = (&gradients, &alone);
            scope.spawn(move || {
                for _ in 0..20 {
                    assert_eq!(
                        gradients(1. + f64::from(n % 2)).unwrap(),
                        alone[n as usize % 2]
                    );
                }
            });
        }
    });
    Ok(())
}

#[test]
fn of_the_operation_by_itself() -> Result<()> {
    let [q, k, v] = variables();
    let operation = FlashAttn {
        softmax_scale: SCALE,
        alibi_slopes: None,
        window_size_left: None,
        window_size_right: Some(0),
        softcap: None,
    };
    let by_hand = q.apply_op3(&k, &v, operation)?;
    let by_function = flash_attn(&q, &k, &v, SCALE, true)?;
    compare("", &by_hand, &by_function, &[&q, &k, &v], 0.);
    Ok(())
}

#[test]
fn without_keys_are_zeros() -> Result<()> {
    let [q, k, v] = variables();
    let bias = Numbers::new(28).var(&[5, 7]);
    let nothing = q.narrow(1, 0, 0)?;
    let gradients = flash_attn(&nothing, &k, &v, SCALE, false)?
        .sum_all()?
        .backward()?;
    for variable in [&q, &k, &v] {
        assert!(values(gradients.get(variable).unwrap())
            .iter()
            .all(|x| *x == 0.));
    }
    let (k, v) = (k.narrow(1, 0, 0)?, v.narrow(1, 0, 0)?);
    let none = bias.narrow(1, 0, 0)?;
    let out = flash_attn_with_mask(&q, &k, &v, Some(&none), SCALE, false)?;
    let gradients = loss(&out)?.backward()?;
    for variable in [&q, &bias] {
        assert!(values(gradients.get(variable).unwrap())
            .iter()
            .all(|x| *x == 0.));
    }
    Ok(())
}

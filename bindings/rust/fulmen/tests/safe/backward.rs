//! Gradients, verified by the library's reference and by finite differences.

use fulmen::{Attention, Backward, Causal, Error, Forward, Result, Tensor, TensorMut};

use crate::numbers::numbers;

const SHAPE: [usize; 4] = [1, 6, 2, 8];
const ROWS: [usize; 4] = [1, 2, 6, 1];
const N: usize = 96;

/// Sum of dout * out.
fn loss(attention: &Attention, q: &[f32], k: &[f32], v: &[f32], bias: &[f32]) -> Result<f64> {
    let mut out = vec![0f32; N];
    let call = Forward::new(
        Tensor::bshd(q, SHAPE)?,
        Tensor::bshd(k, SHAPE)?,
        Tensor::bshd(v, SHAPE)?,
        TensorMut::bshd(&mut out, SHAPE)?,
    );
    let exact = attention.reference(&call.bias(Tensor::bhqk(bias, [1, 1, 6, 6])?))?;
    Ok(exact
        .iter()
        .zip(numbers(4, N))
        .map(|(x, w)| x * f64::from(w))
        .sum())
}

#[test]
fn all_gradients() -> Result<()> {
    let (q, k, v) = (numbers(1, N), numbers(2, N), numbers(3, N));
    let (dout, bias) = (numbers(4, N), numbers(5, 36));
    let sinks = [0.5f32, -0.5];
    let attention = Attention::builder().causal(Causal::BottomRight).build()?;
    let (mut out, mut lse) = (vec![0f32; N], vec![0f32; 12]);
    let view = |data| Tensor::bshd(data, SHAPE);
    let with = |data| Tensor::bhqk(data, [1, 1, 6, 6]);
    attention.forward(
        &mut Forward::new(
            view(&q)?,
            view(&k)?,
            view(&v)?,
            TensorMut::bshd(&mut out, SHAPE)?,
        )
        .lse(TensorMut::bhqk(&mut lse, ROWS)?)
        .bias(with(&bias)?)
        .sinks(Tensor::one_dim(&sinks)?),
    )?;
    let lse = Tensor::bhqk(&lse, ROWS)?;
    let (mut dq, mut dk, mut dv) = (vec![0f32; N], vec![0f32; N], vec![0f32; N]);
    let (mut dbias, mut dsinks) = (vec![0f32; 36], [0f32; 2]);
    let mut call = Backward::new(
        view(&q)?,
        view(&k)?,
        view(&v)?,
        view(&out)?,
        lse,
        view(&dout)?,
    )
    .bias(with(&bias)?)
    .sinks(Tensor::one_dim(&sinks)?)
    .dlse(lse)
    .dq(TensorMut::bshd(&mut dq, SHAPE)?)
    .dk(TensorMut::bshd(&mut dk, SHAPE)?)
    .dv(TensorMut::bshd(&mut dv, SHAPE)?)
    .dbias(TensorMut::bhqk(&mut dbias, [1, 1, 6, 6])?)
    .dsinks(TensorMut::one_dim(&mut dsinks)?);
    let plan = attention.plan(&call)?;
    let mut workspace = plan.workspace()?;
    plan.run(&mut call, Some(&mut workspace))?;
    let report = attention.verify(&call)?;
    assert!(report.worst_error <= report.bound, "{report:?}");
    assert!(attention
        .candidates(&call)?
        .iter()
        .any(|c| c.reason.is_none()));
    assert!(attention.describe(&call)?.flops > 0.);
    for gradient in [&dq[..], &dk, &dv, &dbias, &dsinks] {
        assert!(gradient.iter().any(|x| *x != 0.));
    }
    Ok(())
}

#[test]
fn finite_differences() -> Result<()> {
    let (q, k, v) = (numbers(1, N), numbers(2, N), numbers(3, N));
    let (dout, bias) = (numbers(4, N), numbers(5, 36));
    let attention = Attention::builder().softcap(3.).build()?;
    let (mut out, mut lse) = (vec![0f32; N], vec![0f32; 12]);
    let view = |data| Tensor::bshd(data, SHAPE);
    let with = |data| Tensor::bhqk(data, [1, 1, 6, 6]);
    attention.forward(
        &mut Forward::new(
            view(&q)?,
            view(&k)?,
            view(&v)?,
            TensorMut::bshd(&mut out, SHAPE)?,
        )
        .lse(TensorMut::bhqk(&mut lse, ROWS)?)
        .bias(with(&bias)?),
    )?;
    let (mut dq, mut dbias) = (vec![0f32; N], vec![0f32; 36]);
    let lse = Tensor::bhqk(&lse, ROWS)?;
    attention.backward(
        &mut Backward::new(
            view(&q)?,
            view(&k)?,
            view(&v)?,
            view(&out)?,
            lse,
            view(&dout)?,
        )
        .bias(with(&bias)?)
        .dq(TensorMut::bshd(&mut dq, SHAPE)?)
        .dbias(TensorMut::bhqk(&mut dbias, [1, 1, 6, 6])?),
    )?;
    let step = 1e-3;
    let moved = |data: &[f32], i: usize, by: f32| {
        let mut data = data.to_vec();
        data[i] += by;
        data
    };
    for i in [0, 17, 50, 95] {
        let at = |by| loss(&attention, &moved(&q, i, by), &k, &v, &bias);
        let slope = (at(step)? - at(-step)?) / f64::from(2. * step);
        assert!(
            (slope - f64::from(dq[i])).abs() < 1e-3,
            "{i}: {slope}, {}",
            dq[i]
        );
    }
    for i in [0, 13, 35] {
        let at = |by| loss(&attention, &q, &k, &v, &moved(&bias, i, by));
        let slope = (at(step)? - at(-step)?) / f64::from(2. * step);
        assert!(
            (slope - f64::from(dbias[i])).abs() < 1e-3,
            "{i}: {slope}, {}",
            dbias[i]
        );
    }
    Ok(())
}

/// A forward plan would write what a backward call only lends it.
#[test]
fn a_plan_runs_calls_of_its_pass_alone() -> Result<()> {
    let (q, mut out) = (numbers(1, N), vec![0f32; N]);
    let view = Tensor::bshd(&q, SHAPE)?;
    let plan = Attention::default().plan(&Forward::new(
        view,
        view,
        view,
        TensorMut::bshd(&mut out, SHAPE)?,
    ))?;
    let (lse, mut dq) = ([0f32; 12], vec![0f32; N]);
    let lse = Tensor::bhqk(&lse, ROWS)?;
    let mut call = Backward::new(view, view, view, Tensor::bshd(&out, SHAPE)?, lse, view)
        .dq(TensorMut::bshd(&mut dq, SHAPE)?);
    let error = plan.run(&mut call, None).unwrap_err();
    assert!(matches!(&error, Error::InvalidArgument(m) if m.contains("the backward pass")));
    Ok(())
}

/// The exact gradients are the slopes of the exact loss, and those that were not asked for are not
/// there.
#[test]
fn the_reference_by_finite_differences() -> Result<()> {
    let (q, k, v) = (numbers(1, N), numbers(2, N), numbers(3, N));
    let (dout, bias, lse) = (numbers(4, N), numbers(5, 36), [0f32; 12]);
    let attention = Attention::builder()
        .causal(Causal::BottomRight)
        .softcap(3.)
        .build()?;
    let view = |data| Tensor::bshd(data, SHAPE);
    let lse = Tensor::bhqk(&lse, ROWS)?;
    let (mut dk, mut dbias) = (vec![0f32; N], vec![0f32; 36]);
    let call = Backward::new(
        view(&q)?,
        view(&k)?,
        view(&v)?,
        view(&q)?,
        lse,
        view(&dout)?,
    )
    .bias(Tensor::bhqk(&bias, [1, 1, 6, 6])?)
    .dk(TensorMut::bshd(&mut dk, SHAPE)?)
    .dbias(TensorMut::bhqk(&mut dbias, [1, 1, 6, 6])?);
    let exact = attention.reference_gradients(&call)?;
    assert_eq!((exact.dq, exact.dv, exact.dsinks), (None, None, None));
    let (dk, dbias) = (exact.dk.unwrap(), exact.dbias.unwrap());
    assert_eq!((dk.len(), dbias.len()), (N, 36));
    let step = 1f32 / 1024.;
    let moved = |data: &[f32], i: usize, by: f32| {
        let mut data = data.to_vec();
        data[i] += by;
        data
    };
    for i in [0, 40, 95] {
        let at = |by| loss(&attention, &q, &moved(&k, i, by), &v, &bias);
        let slope = (at(step)? - at(-step)?) / f64::from(2. * step);
        assert!((slope - dk[i]).abs() < 1e-4, "{i}: {slope}, {}", dk[i]);
    }
    for i in [0, 13, 35] {
        let at = |by| loss(&attention, &q, &k, &v, &moved(&bias, i, by));
        let slope = (at(step)? - at(-step)?) / f64::from(2. * step);
        assert!(
            (slope - dbias[i]).abs() < 1e-4,
            "{i}: {slope}, {}",
            dbias[i]
        );
    }
    Ok(())
}

/// One wrong gradient among right ones is the one that is outside of its bound.
#[test]
fn errors_of_each_gradient() -> Result<()> {
    let (q, dout) = (numbers(1, N), numbers(4, N));
    let (mut out, mut lse) = (vec![0f32; N], vec![0f32; 12]);
    let (mut dq, mut dk, mut dv) = (vec![0f32; N], vec![0f32; N], vec![0f32; N]);
    let view = |data| Tensor::bshd(data, SHAPE);
    let attention = Attention::default();
    let q = view(&q)?;
    attention.forward(
        &mut Forward::new(q, q, q, TensorMut::bshd(&mut out, SHAPE)?)
            .lse(TensorMut::bhqk(&mut lse, ROWS)?),
    )?;
    let lse = Tensor::bhqk(&lse, ROWS)?;
    let call = |gradients: [TensorMut<'_>; 3]| -> Result<Vec<fulmen::GradientError>> {
        let [dq, dk, dv] = gradients;
        let mut call = Backward::new(q, q, q, view(&out)?, lse, view(&dout)?)
            .dq(dq)
            .dk(dk)
            .dv(dv);
        attention.backward(&mut call)?;
        attention.gradient_errors(&call)
    };
    let mut at = |dk: &mut Vec<f32>| -> Result<Vec<fulmen::GradientError>> {
        call([
            TensorMut::bshd(&mut dq, SHAPE)?,
            TensorMut::bshd(dk, SHAPE)?,
            TensorMut::bshd(&mut dv, SHAPE)?,
        ])
    };
    let errors = at(&mut dk)?;
    let names: Vec<_> = errors.iter().map(|error| &*error.tensor).collect();
    assert_eq!(names, ["dq", "dk", "dv"]);
    assert!(
        errors.iter().all(|error| error.worst_error <= error.bound),
        "{errors:?}"
    );
    dk[7] += 1.;
    let call = Backward::new(q, q, q, view(&out)?, lse, view(&dout)?)
        .dq(TensorMut::bshd(&mut dq, SHAPE)?)
        .dk(TensorMut::bshd(&mut dk, SHAPE)?);
    let errors = attention.gradient_errors(&call)?;
    let wrong = |n: usize| errors[n].worst_error > errors[n].bound;
    assert_eq!(
        (errors.len(), wrong(0), wrong(1)),
        (2, false, true),
        "{errors:?}"
    );
    assert!(
        matches!(attention.verify(&call), Err(Error::VerificationFailed(m)) if m.contains("dk"))
    );
    Ok(())
}

/// `deterministic(false)` offers kernels that a deterministic call refuses with this reason.
#[test]
fn atomics_are_asked_for() -> Result<()> {
    let (q, lse, mut dq) = (numbers(1, N), [0f32; 12], vec![0f32; N]);
    let view = Tensor::bshd(&q, SHAPE)?;
    let lse = Tensor::bhqk(&lse, ROWS)?;
    let call =
        Backward::new(view, view, view, view, lse, view).dq(TensorMut::bshd(&mut dq, SHAPE)?);
    let refused = |deterministic| -> Result<bool> {
        let attention = Attention::builder()
            .device("emulated:sm_90a")
            .deterministic(deterministic)
            .build()?;
        let reasons = attention
            .candidates(&call)?
            .into_iter()
            .filter_map(|c| c.reason);
        Ok(reasons
            .into_iter()
            .any(|reason| reason.contains("deterministic")))
    };
    assert!(refused(true)?);
    assert!(!refused(false)?);
    Ok(())
}

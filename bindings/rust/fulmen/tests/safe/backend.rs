//! Backends of the user's: asked, chosen, forced, listed, and their mistakes.

use fulmen::{
    devices, register_backend, unregister_backend, Attention, AttentionBackend, BackendCall,
    BackendGradients, Backward, Causal, Error, Forward, Result, Shapes, Tensor, TensorMut,
};

use crate::numbers::numbers;

const SHAPE: [usize; 4] = [1, 4, 2, 8];
const N: usize = 64;

/// Attention by loops; what it does beside it is said by its name.
struct Loops(&'static str);

impl AttentionBackend for Loops {
    fn name(&self) -> &str {
        self.0
    }

    fn rank(&self) -> f64 {
        if self.0 == "unranked" {
            0.
        } else {
            1.
        }
    }

    fn supports(&self, shapes: &Shapes<'_>) -> std::result::Result<(), String> {
        let q = shapes.q().ok_or("there is no q")?;
        if self.0 == "panics when asked" {
            panic!("what is this?")
        }
        match shapes.options().causal {
            Causal::None if shapes.bias().is_none() => Ok(()),
            causal => Err(format!("{causal:?} and bias are beyond {:?}", q.shape)),
        }
    }

    fn run(&self, call: &mut BackendCall<'_>) -> Result<()> {
        match self.0 {
            "panics" => panic!("out of loops"),
            "fails" => return Err(Error::OutOfMemory("no room for loops".into())),
            _ => {}
        }
        let [batch, rows, heads, dim] = call.q().shape();
        let scale = call.options().softmax_scale;
        let keys = call.k().shape()[1];
        for (b, h, i) in
            (0..batch * heads * rows).map(|n| (n / heads / rows, n / rows % heads, n % rows))
        {
            let at = |x: Option<f32>| x.unwrap_or(f32::NAN);
            let score = |j| -> f32 {
                let term = |c| at(call.q().get([b, i, h, c])) * at(call.k().get([b, j, h, c]));
                scale * (0..dim).map(term).sum::<f32>()
            };
            let weights: Vec<f32> = (0..keys).map(|j| score(j).exp()).collect();
            let sum: f32 = weights.iter().sum();
            for c in 0..dim {
                let term = |j: usize| weights[j] * at(call.v().get([b, j, h, c]));
                let value = (0..keys).map(term).sum::<f32>() / sum;
                call.out().set([b, i, h, c], value)?;
            }
            if let Some(mut lse) = call.lse() {
                lse.set([b, h, i, 0], sum.ln())?;
            }
        }
        assert_eq!(call.q().get([batch, 0, 0, 0]), None);
        call.out().set([0, 0, 0, dim], 0.).unwrap_err();
        Ok(())
    }

    fn backward_kernel_name(&self) -> Option<String> {
        Some(format!("{}.ones", self.0))
    }

    fn run_backward(&self, call: &mut BackendGradients<'_>) -> Result<()> {
        let [_, rows, heads, dim] = call.q().shape();
        let Some(mut dq) = call.dq() else {
            return Err(Error::Unsupported("no dq is asked for".into()));
        };
        for n in 0..rows * heads * dim {
            dq.set([0, n / heads / dim, n / dim % heads, n % dim], 1.)?;
        }
        Ok(())
    }
}

fn run(attention: &Attention, out: &mut [f32]) -> Result<()> {
    let (q, k, v) = (numbers(1, N), numbers(2, N), numbers(3, N));
    let view = |data| Tensor::bshd(data, SHAPE);
    let mut lse = vec![0f32; 8];
    let out = TensorMut::bshd(out, SHAPE)?;
    let call = Forward::new(view(&q)?, view(&k)?, view(&v)?, out);
    attention.forward(&mut call.lse(TensorMut::bhqk(&mut lse, [1, 2, 4, 1])?))
}

fn on(device: &str) -> Result<Attention> {
    Attention::builder().device(device).build()
}

#[test]
fn a_backend_is_a_device() -> Result<()> {
    register_backend(Loops("loops"))?;
    assert!(devices()?
        .iter()
        .any(|d| d.name == "loops" && d.host_memory && d.reason.is_none()));
    let (mut ours, mut expected) = (vec![0f32; N], vec![0f32; N]);
    run(&Attention::default(), &mut expected)?;
    let by_name = Attention::builder()
        .device("loops")
        .kernel("loops.kernel")
        .verify(true);
    for attention in [on("loops")?, by_name.build()?] {
        ours.fill(0.);
        run(&attention, &mut ours)?;
        for (x, y) in ours.iter().zip(&expected) {
            assert!((x - y).abs() < 1e-5, "{x}, {y}");
        }
    }
    // A second one of the name, and a device with a colon, are refused.
    assert!(register_backend(Loops("loops"))
        .unwrap_err()
        .message()
        .contains("loops"));
    assert!(register_backend(Loops("a:b"))
        .unwrap_err()
        .message()
        .contains("a:b"));
    // A reason of its own.
    let causal = Attention::builder()
        .device("loops")
        .causal(Causal::TopLeft)
        .build()?;
    let error = run(&causal, &mut ours).unwrap_err();
    assert!(
        matches!(&error, Error::Unsupported(m) if m.contains("TopLeft and bias are beyond [1, 4, 2, 8]")),
        "{error}"
    );
    unregister_backend("loops")?;
    assert!(run(&on("loops")?, &mut ours).is_err());
    assert!(unregister_backend("cpu").is_err());
    Ok(())
}

#[test]
fn a_plan_outlives_its_registration() -> Result<()> {
    register_backend(Loops("short-lived"))?;
    let (q, mut out) = (numbers(1, N), vec![0f32; N]);
    let view = Tensor::bshd(&q, SHAPE)?;
    let mut call = Forward::new(view, view, view, TensorMut::bshd(&mut out, SHAPE)?);
    let plan = on("short-lived")?.plan(&call)?;
    unregister_backend("short-lived")?;
    plan.run(&mut call, None)?;
    assert!(out.iter().any(|x| *x != 0.));
    Ok(())
}

#[test]
fn rank_0_runs_only_where_it_is_forced() -> Result<()> {
    register_backend(Loops("unranked"))?;
    let mut out = vec![0f32; N];
    assert!(matches!(
        run(&on("unranked")?, &mut out),
        Err(Error::Unsupported(_))
    ));
    let forced = Attention::builder()
        .device("unranked")
        .kernel("unranked.kernel")
        .build()?;
    run(&forced, &mut out)?;
    unregister_backend("unranked")
}

#[test]
fn gradients_of_a_backend() -> Result<()> {
    register_backend(Loops("gradients"))?;
    let (q, lse, mut dq) = (numbers(1, N), [0f32; 8], vec![0f32; N]);
    let view = Tensor::bshd(&q, SHAPE)?;
    let lse = Tensor::bhqk(&lse, [1, 2, 4, 1])?;
    on("gradients")?.backward(
        &mut Backward::new(view, view, view, view, lse, view).dq(TensorMut::bshd(&mut dq, SHAPE)?),
    )?;
    assert_eq!(dq, vec![1.; N]);
    unregister_backend("gradients")
}

/// Errors and panics of a backend come to the caller with their words.
#[test]
fn a_backend_that_fails() -> Result<()> {
    let mut out = vec![0f32; N];
    for name in ["panics", "fails", "panics when asked"] {
        register_backend(Loops(name))?;
    }
    let error = run(&on("panics")?, &mut out).unwrap_err();
    assert!(
        matches!(&error, Error::Internal(m) if m.contains("out of loops")),
        "{error:?}"
    );
    let error = run(&on("fails")?, &mut out).unwrap_err();
    assert!(
        matches!(&error, Error::OutOfMemory(m) if m.contains("no room for loops")),
        "{error:?}"
    );
    let error = run(&on("panics when asked")?, &mut out).unwrap_err();
    assert!(
        matches!(&error, Error::Unsupported(m) if m.contains("what is this?")),
        "{error:?}"
    );
    for name in ["panics", "fails", "panics when asked"] {
        unregister_backend(name)?;
    }
    Ok(())
}

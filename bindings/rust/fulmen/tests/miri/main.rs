//! The crate's own unsafe code under miri, which runs no machine code: the library is a fake of the
//! few functions that these tests call. `bindings/rust/sanitize miri` runs them; elsewhere there are
//! none.
#![cfg(miri)]

mod library;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::thread;

use fulmen::half::{bf16, f16};
use fulmen::{
    register_backend, unregister_backend, Attention, AttentionBackend, BackendCall,
    BackendGradients, Backward, Call, DeviceBuffer, Element, Error, Forward, ParallelFor, Plan,
    Result, Shapes, Tensor, TensorMut,
};

/// `out = q + v`, `lse = 1`; `dq = 2 dout`. Its name says what else it does.
struct Sums(&'static str);

impl AttentionBackend for Sums {
    fn name(&self) -> &str {
        self.0
    }

    fn supports(&self, shapes: &Shapes<'_>) -> std::result::Result<(), String> {
        match (self.0, shapes.q()) {
            ("refuses", _) => Err("ééééé".into()),
            ("panics when asked", _) => panic!("why?"),
            (_, Some(q)) if q.shape[3] > 0 => Ok(()),
            _ => Err("no q".into()),
        }
    }

    fn run(&self, call: &mut BackendCall<'_>) -> Result<()> {
        match self.0 {
            "panics" => panic!("out of sums"),
            "fails" => return Err(Error::OutOfMemory("no room".into())),
            _ => {}
        }
        let [batch, rows, heads, dim] = call.q().shape();
        let (q, v) = (call.q(), call.v());
        for n in 0..batch * rows * heads * dim {
            let (b, i) = (n / dim / heads / rows, n / dim / heads % rows);
            let at = [b, i, n / dim % heads, n % dim];
            let sum = q.get(at).zip(v.get(at)).map_or(f32::NAN, |(q, v)| q + v);
            call.out().set(at, sum)?;
        }
        if let Some(mut lse) = call.lse() {
            lse.set([0; 4], 1.)?;
        }
        assert_eq!(call.q().get([batch, 0, 0, 0]), None);
        call.out()
            .set([0, 0, 0, dim], 0.)
            .map_or(Ok(()), |()| Err(Error::Internal("outside".into())))
    }

    fn backward_kernel_name(&self) -> Option<String> {
        Some("twice".into())
    }

    fn run_backward(&self, call: &mut BackendGradients<'_>) -> Result<()> {
        let [_, rows, heads, dim] = call.q().shape();
        let dout = call.dout();
        let Some(mut dq) = call.dq() else {
            return Err(Error::Unsupported("no dq is asked for".into()));
        };
        for n in 0..rows * heads * dim {
            let at = [0, n / dim / heads, n / dim % heads, n % dim];
            dq.set(at, 2. * dout.get(at).unwrap_or(f32::NAN))?;
        }
        Ok(())
    }
}

fn on(device: &str) -> Result<Attention> {
    Attention::builder().device(device).build()
}

const SHAPE: [usize; 4] = [1, 3, 2, 4];
const N: usize = 24;

fn numbers<T: From<i8>>() -> Vec<T> {
    (0..N as i8).map(T::from).collect()
}

/// Views of each type, with heads of a packed tensor and with rows that overlap a slice's end.
#[test]
fn a_backend_reads_and_writes_views() -> Result<()> {
    fn of<T: Element + Copy + PartialEq + std::fmt::Debug>(from: fn(f32) -> T) -> Result<()> {
        let packed: Vec<T> = (0..3 * N).map(|n| from(n as f32)).collect();
        let part = |n: usize| Tensor::strided(&packed[n * 8..], SHAPE, [72, 24, 4, 1]);
        let mut out = vec![from(-1.); N];
        let mut lse = [0f32; 6];
        let mut call = Forward::new(
            part(0)?,
            part(1)?,
            part(2)?,
            TensorMut::bshd(&mut out, SHAPE)?,
        )
        .lse(TensorMut::bhqk(&mut lse, [1, 2, 3, 1])?);
        on("views")?.forward(&mut call)?;
        assert_eq!(
            (out[0], out[8], out[N - 1]),
            (from(16.), from(64.), from(126.))
        );
        assert_eq!(lse, [1., 0., 0., 0., 0., 0.]);
        Ok(())
    }
    register_backend(Sums("views"))?;
    of(|x| x)?;
    of(f16::from_f32)?;
    of(bf16::from_f32)?;
    // Bytes are read, and are no output.
    let (keep, mut out) = ([true; N], [false; N]);
    let keep = Tensor::bshd(&keep, SHAPE)?;
    let out = TensorMut::bshd(&mut out, SHAPE)?;
    assert!(on("views")?
        .forward(&mut Forward::new(keep, keep, keep, out))
        .is_err());
    unregister_backend("views")
}

#[test]
fn gradients_and_a_result_in_place() -> Result<()> {
    register_backend(Sums("gradients"))?;
    let (q, lse, mut dq) = (numbers::<f32>(), [0f32; 6], vec![0f32; N]);
    let view = Tensor::bshd(&q, SHAPE)?;
    let lse = Tensor::bhqk(&lse, [1, 2, 3, 1])?;
    let mut call = Backward::new(view, view, view, view, lse, view);
    let error = on("gradients")?.backward(&mut call).unwrap_err();
    assert_eq!(
        error,
        Error::Unsupported("the fake: no dq is asked for".into())
    );
    on("gradients")?.backward(&mut call.dq(TensorMut::bshd(&mut dq, SHAPE)?))?;
    assert_eq!(dq[N - 1], 46.);
    let mut in_place = numbers::<f32>();
    let q = TensorMut::bshd(&mut in_place, SHAPE)?;
    on("gradients")?.forward(&mut Forward::in_place(q, view, view))?;
    assert_eq!(in_place[N - 1], 46.);
    unregister_backend("gradients")
}

/// Words come back from callbacks, whole characters of them, and panics do not pass the C ABI.
#[test]
fn a_backend_that_fails() -> Result<()> {
    let q = numbers::<f32>();
    for (name, words) in [
        ("refuses", "the fake: ééé"),
        ("panics when asked", "the fake: support"),
        ("panics", "the fake: run() panicked: out of sums"),
        ("fails", "the fake: no room"),
    ] {
        register_backend(Sums(name))?;
        let mut out = vec![0f32; N];
        let view = Tensor::bshd(&q, SHAPE)?;
        let mut call = Forward::new(view, view, view, TensorMut::bshd(&mut out, SHAPE)?);
        let error = on(name)?.forward(&mut call).unwrap_err();
        assert_eq!(error.message(), words);
        unregister_backend(name)?;
    }
    assert!(register_backend(Sums("refused:")).is_err());
    Ok(())
}

struct Threads;

impl ParallelFor for Threads {
    fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        thread::scope(|scope| {
            for index in 0..count {
                scope.spawn(move || task(index));
            }
        });
    }
}

struct Panics;

impl ParallelFor for Panics {
    fn run(&self, _: usize, _: &(dyn Fn(usize) + Sync)) {
        panic!("no threads")
    }
}

fn call<'a>(q: &'a [f32], out: &'a mut [f32]) -> Result<Forward<'a>> {
    let q = Tensor::bshd(q, SHAPE)?;
    Ok(Forward::new(q, q, q, TensorMut::bshd(out, SHAPE)?))
}

fn plan(pool: impl ParallelFor) -> Result<Plan> {
    let (q, mut out) = (numbers::<f32>(), vec![0f32; N]);
    // The options, and what they point to, are gone before the plan runs.
    let attention = Attention::builder()
        .device("cpu")
        .kernel("a")
        .parallel_for(pool)
        .build()?;
    attention.plan(&call(&q, &mut out)?)
}

/// The pool outlives its options, its tasks write on other threads, and plans are shared.
#[test]
fn threads_share_a_plan_and_its_pool() -> Result<()> {
    let plan = plan(Threads)?;
    let outs = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (q, mut out) = (numbers::<f32>(), vec![0f32; N]);
                let mut workspace = plan.workspace().unwrap();
                plan.run(&mut call(&q, &mut out).unwrap(), Some(&mut workspace))
                    .unwrap();
                outs.lock().unwrap().push(out);
            });
        }
    });
    assert_eq!(outs.into_inner().unwrap(), vec![numbers::<f32>(); 2]);
    Ok(())
}

#[test]
fn a_pool_that_panics() -> Result<()> {
    let (q, mut out) = (numbers::<f32>(), vec![0f32; N]);
    let error = plan(Panics)?
        .run(&mut call(&q, &mut out)?, None)
        .unwrap_err();
    assert_eq!(
        error,
        Error::Internal("the pool panicked: no threads".into())
    );
    Ok(())
}

#[test]
fn buffers_visitors_and_the_log() -> Result<()> {
    let mut buffer = DeviceBuffer::new("cpu", 12)?;
    buffer.copy_from(&[1f32, 2.])?;
    let mut back = [9f32; 3];
    buffer.copy_to(&mut back)?;
    assert_eq!(back, [1., 2., 0.]);
    assert!(buffer.copy_to(&mut [0f32; 4]).is_err());
    let devices = fulmen::devices()?;
    assert_eq!((devices.len(), devices[0].name.as_str()), (1, "cpu"));
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    fulmen::set_log(|line| LINES.lock().unwrap().push(line.into()))?;
    fulmen::set_log(|_| panic!("a log that fails"))?;
    assert_eq!(*LINES.lock().unwrap(), ["a line"]);
    Ok(())
}

/// What is generic over both passes takes both.
#[test]
fn a_plan_of_the_other_pass_is_refused() -> Result<()> {
    fn refused(plan: &Plan, call: &mut impl Call) {
        let error = plan.run(call, None).unwrap_err();
        assert!(error.message().contains("backward pass"), "{error}");
    }
    let (q, lse, mut dq) = (numbers::<f32>(), [0f32; 6], vec![0f32; N]);
    let view = Tensor::bshd(&q, SHAPE)?;
    let call = Backward::new(
        view,
        view,
        view,
        view,
        Tensor::bhqk(&lse, [1, 2, 3, 1])?,
        view,
    );
    refused(
        &plan(Threads)?,
        &mut call.dq(TensorMut::bshd(&mut dq, SHAPE)?),
    );
    Ok(())
}

/// An allocator that a limit makes give nothing, or panic.
struct Limited(usize, bool);

// SAFETY: all memory is the system's.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        assert!(!self.1, "an allocator that fails");
        match layout.size() <= self.0 {
            true => System.alloc(layout),
            false => std::ptr::null_mut(),
        }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        System.dealloc(memory, layout);
    }
}

#[test]
fn allocators() -> Result<()> {
    fulmen::set_allocator(Limited(1000, false))?;
    for refusing in [Limited(10, false), Limited(1000, true)] {
        let error = fulmen::set_allocator(refusing).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory(_)), "{error:?}");
    }
    fulmen::reset_allocator()
}

#[test]
fn exact_gradients_and_their_errors() -> Result<()> {
    let (q, lse) = (numbers::<f32>(), [0f32; 6]);
    let (mut dq, mut dsinks) = (vec![0f32; N], [0f32; 2]);
    let view = Tensor::bshd(&q, SHAPE)?;
    let lse = Tensor::bhqk(&lse, [1, 2, 3, 1])?;
    let call = Backward::new(view, view, view, view, lse, view)
        .dq(TensorMut::bshd(&mut dq, SHAPE)?)
        .dsinks(TensorMut::one_dim(&mut dsinks)?);
    let attention = Attention::default();
    let exact = attention.reference_gradients(&call)?;
    assert_eq!(exact.dq, Some(vec![1.; N]));
    assert_eq!(exact.dsinks, Some(vec![1.; 2]));
    assert_eq!(exact.dk, None);
    let errors = attention.gradient_errors(&call)?;
    assert_eq!((errors.len(), &*errors[1].tensor), (2, "dk"));
    assert!(errors[0].worst_error > errors[0].bound);
    Ok(())
}

//! What this crate adds to a call of the C ABI, and what making a call's views costs.
//!
//! `cargo bench -p fulmen` prints nanoseconds a call. The kernel is a user's backend that does
//! nothing, so that only checks and calls are left. The candidates take turns in short rounds, and
//! the median of each one's rounds counts.

use std::ffi::{c_void, CString};
use std::hint::black_box;
use std::mem::{size_of, zeroed};
use std::ptr;
use std::time::Instant;

use fulmen::{
    register_backend, Attention, AttentionBackend, BackendCall, Forward, Result, Shapes, Tensor,
    TensorMut,
};
use fulmen_sys as sys;

struct Nothing;

impl AttentionBackend for Nothing {
    fn name(&self) -> &str {
        "nothing"
    }
    fn supports(&self, _: &Shapes<'_>) -> std::result::Result<(), String> {
        Ok(())
    }
    fn run(&self, _: &mut BackendCall<'_>) -> Result<()> {
        Ok(())
    }
}

const SHAPE: [usize; 4] = [1, 4, 1, 16];
const CALLS: u32 = 20;

fn nanoseconds(call: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..CALLS {
        call();
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}

/// The same plan by the C ABI alone.
struct ByHand {
    plan: *mut sys::fulmen_plan,
    tensors: sys::fulmen_tensors,
}

impl ByHand {
    fn new(q: &[f32], out: &mut [f32]) -> Self {
        let device = CString::new("nothing").expect("no NUL");
        let tensors = Self::tensors(q, out);
        let mut plan = ptr::null_mut();
        // SAFETY: the struct is initialised; the plan reads no memory.
        let made =
            unsafe { sys::fulmen_plan_create(&tensors, ptr::null(), device.as_ptr(), &mut plan) };
        assert_eq!(made, 0);
        Self { plan, tensors }
    }

    fn tensors(q: &[f32], out: &mut [f32]) -> sys::fulmen_tensors {
        let view = |data: *mut c_void| sys::fulmen_tensor {
            data,
            dtype: sys::FULMEN_FP32 as i32,
            shape: [1, 4, 1, 16],
            strides: [0, 16, 0, 1],
            reserved: [0; 2],
        };
        // SAFETY: zero is a value of each field, and the size is the struct's.
        let mut tensors: sys::fulmen_tensors = unsafe { zeroed() };
        unsafe { sys::fulmen_tensors_init_sized(&mut tensors, size_of::<sys::fulmen_tensors>()) };
        tensors.q = view(q.as_ptr().cast_mut().cast());
        (tensors.k, tensors.v) = (tensors.q, tensors.q);
        tensors.out = view(out.as_mut_ptr().cast());
        tensors
    }

    fn run(&self, tensors: &sys::fulmen_tensors) {
        // SAFETY: the views are of slices that live longer.
        let status = unsafe {
            sys::fulmen_plan_run(self.plan, ptr::null_mut(), tensors, ptr::null_mut(), 0)
        };
        assert_eq!(black_box(status), 0);
    }
}

/// Its name, a call of it, and nanoseconds a call of each round.
type Candidate<'a> = (&'static str, &'a mut dyn FnMut(), Vec<f64>);

fn main() -> Result<()> {
    register_backend(Nothing)?;
    let (q, mut out) = (vec![0f32; 64], vec![0f32; 64]);
    let [mut second, mut third, mut fourth] = [(); 3].map(|()| vec![0f32; 64]);
    let view = Tensor::bshd(&q, SHAPE)?;
    let by_hand = ByHand::new(&q, &mut second);
    let mut call = Forward::new(view, view, view, TensorMut::bshd(&mut out, SHAPE)?);
    let plan = Attention::builder()
        .device("nothing")
        .build()?
        .plan(&call)?;
    let mut c_abi = || by_hand.run(black_box(&by_hand.tensors));
    let mut c_with_views = || by_hand.run(&ByHand::tensors(black_box(&q), &mut fourth));
    let mut run = || plan.run(black_box(&mut call), None).expect("it runs");
    let mut with_views = || {
        let view = Tensor::bshd(black_box(&q), SHAPE).expect("it fits");
        let out = TensorMut::bshd(&mut third, SHAPE).expect("it fits");
        let mut call = Forward::new(view, view, view, out);
        plan.run(&mut call, None).expect("it runs");
    };
    let mut candidates: [Candidate<'_>; 4] = [
        ("fulmen_plan_run", &mut c_abi, Vec::new()),
        ("Plan::run", &mut run, Vec::new()),
        (
            "fulmen_plan_run with new views",
            &mut c_with_views,
            Vec::new(),
        ),
        ("Plan::run with new views", &mut with_views, Vec::new()),
    ];
    for _ in 0..5001 {
        for (_, call, rounds) in &mut candidates {
            rounds.push(nanoseconds(call));
        }
    }
    // Each of the crate's behind the C ABI's of the same kind.
    for pair in candidates.chunks_mut(2) {
        let [c_abi, ours] = [0, 1].map(|which| {
            let (name, _, rounds) = &mut pair[which];
            rounds.sort_by(f64::total_cmp);
            let median = rounds[rounds.len() / 2];
            println!("{name:32} {median:8.1} ns");
            median
        });
        println!("{:32} {:+8.1} ns", "over the C ABI", ours - c_abi);
    }
    Ok(())
}

//! mistralrs-core's attention with its own code and with Fulmen's, beside sums in double precision.
//!
//!   mistralrs-attention [--time [--rounds N] | --fault NAME | --default]
//!
//! With `--fault` Fulmen is compared with sums of another call, which has to be seen.
//! Ends with 1 where Fulmen's error is more than the crate's own, by the rule of `allowed`, or where
//! Fulmen serves other calls than it is to serve.
#![allow(dead_code)] // of the crate's modules

#[path = "../../../build/mistralrs/mistralrs-core/src/attention/mod.rs"]
mod attention;
#[path = "../../../build/mistralrs/mistralrs-core/src/fulmen.rs"]
mod fulmen;

mod cases;
mod problem;

use std::process::ExitCode;

use candle_core::{DType, Device, Result};

use cases::Case;

/// What the modules take from the rest of the crate.
mod pipeline {
    pub mod text_models_inputs_processor {
        use std::collections::HashMap;

        use candle_core::{DeviceLocation, Tensor};

        pub struct FlashKMeta {
            pub max: u32,
            pub cumulative_seqlens: HashMap<DeviceLocation, Tensor>,
        }

        pub struct FlashParams {
            pub max_q: u32,
            pub cumulative_seqlens_q: HashMap<DeviceLocation, Tensor>,
            pub logical_k: FlashKMeta,
            pub causal: bool,
        }

        impl FlashParams {
            pub fn k_meta(&self, _: Option<usize>) -> &FlashKMeta {
                &self.logical_k
            }
        }
    }
}

fn using_flash_attn() -> bool {
    false
}

struct MemoryUsage;

impl MemoryUsage {
    fn get_memory_available(&self, _: &Device) -> Result<usize> {
        Ok(usize::MAX)
    }
}

/// What Fulmen's error may be beside the right result: twice the crate's own, or of a few units of
/// the largest result, where rounding alone decides which is smaller. A softcap's tanh has the
/// cap's units. Where the crate's own result is a NaN, the second counts.
fn allowed(case: &Case, theirs: f64, largest: f64) -> f64 {
    let unit = match case.dtype {
        DType::F32 => 2f64.powi(-24),
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-8),
    };
    let units = 4. + f64::from(case.softcap.unwrap_or(0.));
    2. * theirs.max(units * unit * largest)
}

fn row(case: &Case, fault: Option<&str>) -> Result<bool> {
    let given = case.given()?;
    let right = given.right(None)?;
    let largest = right.iter().fold(0f64, |most, x| most.max(x.abs()));
    let error = |is_on: bool, right: &[f64]| -> Result<f64> {
        fulmen::enable(is_on);
        let found = given.run()?.to_dtype(DType::F64)?;
        let found: Vec<f64> = found.flatten_all()?.to_vec1()?;
        let pairs = found.iter().zip(right);
        // Unlike max(), this keeps a NaN.
        let larger = |most: f64, x: f64| if x <= most { most } else { x };
        Ok(pairs.fold(0., |most, (a, b)| larger(most, (a - b).abs())))
    };
    let theirs = error(false, &right)?;
    let served = fulmen::served();
    let ours = error(true, &given.right(fault)?)?;
    let is_served = fulmen::served() > served;
    if is_served != case.is_served {
        candle_core::bail!("{}: Fulmen served it: {is_served}", case.name)
    }
    let allowed = if is_served {
        allowed(case, theirs, largest)
    } else {
        theirs
    };
    let verdict = if ours <= allowed { "" } else { "  DIFFER" };
    println!("{:60} {theirs:9.1e} {ours:9.1e}{verdict}", case.name);
    Ok(verdict.is_empty())
}

/// What the process has taken, all threads together.
fn processor_seconds() -> f64 {
    unsafe extern "C" {
        fn clock() -> std::ffi::c_long;
    }
    // SAFETY: it takes nothing and writes nothing.
    (unsafe { clock() }) as f64 / 1e6 // POSIX's CLOCKS_PER_SEC
}

fn time(case: &Case, rounds: usize) -> Result<()> {
    let given = case.given()?;
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (which, is_on) in [false, true].into_iter().enumerate() {
            fulmen::enable(is_on);
            let start = processor_seconds();
            given.run()?;
            seconds[which].push(processor_seconds() - start);
        }
    }
    let [theirs, ours] = seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        seconds[rounds / 2]
    });
    println!(
        "{:60} {:9.3} ms {:9.3} ms {:6.2}",
        case.name,
        1e3 * theirs,
        1e3 * ours,
        theirs / ours
    );
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<usize>().ok().filter(|&n| n > 0);
    let (fault, rounds) = match *words.as_slice() {
        [] => (None, None),
        ["--default"] => {
            let is_on = cases::small()[0]
                .given()
                .and_then(|given| given.run())
                .is_ok()
                && fulmen::served() > 0;
            println!("{}", if is_on { "on" } else { "off" });
            return ExitCode::SUCCESS;
        }
        ["--fault", fault] => (Some(fault), None),
        ["--time"] => (None, Some(5)),
        ["--time", "--rounds", n] if number(n).is_some() => (None, number(n)),
        _ => {
            eprintln!("no argument, or --time [--rounds N] with N from 1 on, are accepted");
            return ExitCode::from(2);
        }
    };
    let all = if rounds.is_some() {
        cases::large()
    } else {
        cases::small()
    };
    let mut agree = true;
    for case in all {
        let done = match rounds {
            Some(rounds) => time(&case, rounds).map(|()| true),
            None => row(&case, fault),
        };
        match done {
            Ok(is_right) => agree &= is_right,
            Err(error) => {
                println!("{}: {error}  DIFFER", case.name);
                agree = false;
            }
        }
    }
    if agree {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

//! candle-transformers' models with their own attention and with Fulmen's: outputs are compared,
//! with `--time` tokens per second, too.
//!
//!   cargo run --release -- [--time] [--rounds N] [PART OF A NAME]
//!
//! Ends with 1 where outputs differ by more than rounding does, or Fulmen serves other models than
//! it is to serve.

mod bert;
mod case;
mod cases;
mod diffusion;
mod llama;
mod weights;
mod whisper;

use std::process::ExitCode;
use std::time::Instant;

use candle_core::{DType, Result, Tensor};
use candle_transformers::fulmen;

use case::{Case, Run};
use weights::Weights;

/// Runs that differ by the rounding of each weight alone.
const ROUNDINGS: u64 = 3;

/// Tokens before those of a run are computed here, by Fulmen for all runs.
fn load(case: &Case, weights: Weights, dtype: DType) -> Result<Run> {
    fulmen::enable(true);
    (case.load)(weights, dtype)
}

fn outputs(run: &mut Run, with_fulmen: bool) -> Result<Tensor> {
    fulmen::enable(with_fulmen);
    run()?.to_dtype(DType::F32)
}

fn largest(a: &Tensor, b: &Tensor) -> Result<f32> {
    let difference: Vec<f32> = (a - b)?.abs()?.flatten_all()?.to_vec1()?;
    // Unlike max(), this keeps a NaN.
    let larger = |most: f32, x: f32| if x <= most { most } else { x };
    Ok(difference.into_iter().fold(0., larger))
}

/// How far two runs of a model are apart, and how far they may be.
struct Comparison {
    apart: f32,
    allowed: f32,
}

impl Comparison {
    fn holds(&self) -> bool {
        self.apart <= self.allowed
    }
}

/// In F32, how far the two attentions are apart stands beside how far the model's own outputs move
/// when each weight is rounded once more. A rounding of each weight is one of each term of a sum,
/// which is about what an evaluation in fp32 has, and there are two evaluations. In 16 bits, both
/// stand beside the model's own outputs in F32 of the same weights.
fn compare(case: &Case, run: &mut Run) -> Result<Comparison> {
    let theirs = outputs(run, false)?;
    let served = fulmen::served();
    let ours = outputs(run, true)?;
    let is_served = fulmen::served() > served;
    if is_served != case.is_served {
        candle_core::bail!("Fulmen served calls: {is_served}")
    }
    let allowed = match case.dtype {
        // The model's own steps twice.
        _ if !case.is_served => 0.,
        DType::F32 => {
            let mut rounding = 0f32;
            for seed in 0..ROUNDINGS {
                let mut rounded = load(case, Weights::Neighbours(seed), case.dtype)?;
                rounding = rounding.max(largest(&outputs(&mut rounded, false)?, &theirs)?);
            }
            2. * rounding
        }
        _ => {
            let mut exact = load(case, Weights::Rounded(case.dtype), DType::F32)?;
            let exact = outputs(&mut exact, false)?;
            return Ok(Comparison {
                apart: largest(&ours, &exact)?,
                allowed: 2. * largest(&theirs, &exact)?,
            });
        }
    };
    let apart = largest(&ours, &theirs)?;
    Ok(Comparison { apart, allowed })
}

/// Medians of tokens per second, the model's own and Fulmen's.
fn rates(case: &Case, run: &mut Run, rounds: usize) -> Result<[f64; 2]> {
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (which, with_fulmen) in [false, true].into_iter().enumerate() {
            fulmen::enable(with_fulmen);
            let start = Instant::now();
            run()?;
            seconds[which].push(start.elapsed().as_secs_f64());
        }
    }
    Ok(seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        case.tokens as f64 / seconds[rounds / 2]
    }))
}

/// Prints a row. True where outputs agree.
fn row(case: &Case, rounds: Option<usize>) -> Result<bool> {
    let weights = match case.dtype {
        DType::F32 => Weights::Exact,
        dtype => Weights::Rounded(dtype),
    };
    let mut run = load(case, weights, case.dtype)?;
    let comparison = compare(case, &mut run)?;
    let Comparison { apart, allowed } = comparison;
    let verdict = if comparison.holds() { "" } else { "  DIFFER" };
    print!("{:74} {apart:9.1e} {allowed:9.1e}", case.name);
    if let Some(rounds) = rounds {
        let [theirs, ours] = rates(case, &mut run, rounds)?;
        print!(" {theirs:9.0} {ours:9.0} {:6.2}", ours / theirs);
    }
    println!("{verdict}");
    Ok(comparison.holds())
}

/// Whether Fulmen serves a model before anyone has turned it on or off.
fn serves_by_default() -> Result<bool> {
    let first = &cases::small()[0];
    (first.load)(Weights::Exact, first.dtype)?()?;
    Ok(fulmen::served() > 0)
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut is_timed, mut rounds, mut part) = (false, 5, String::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--time" => is_timed = true,
            "--rounds" => match arguments.next().map(|n| n.parse()) {
                Some(Ok(n)) if n > 0 => rounds = n,
                _ => {
                    eprintln!("--rounds takes a number from 1 on");
                    return ExitCode::from(2);
                }
            },
            _ => part = argument,
        }
    }
    match serves_by_default() {
        Ok(is_on) => println!("Fulmen is {} by default", if is_on { "on" } else { "off" }),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    let cases = if is_timed {
        cases::timed()
    } else {
        cases::small()
    };
    print!("{:74} {:>9} {:>9}", "", "apart", "allowed");
    println!(
        "{}",
        if is_timed {
            "  candle/s  Fulmen/s  ratio"
        } else {
            ""
        }
    );
    let mut good = 0;
    let mut bad = 0;
    for case in cases.iter().filter(|case| case.name.contains(&part)) {
        match row(case, is_timed.then_some(rounds)) {
            Ok(true) => good += 1,
            Ok(false) => bad += 1,
            Err(error) => {
                println!("{:74} {error}", case.name);
                bad += 1;
            }
        }
    }
    println!(
        "{good} agree, {bad} do not; Fulmen served {} calls",
        fulmen::served()
    );
    ExitCode::from(u8::from(bad > 0 || good == 0))
}

//! Functions that the examples share, which start the ranks and compute random numbers that are equal on every rank.

use mkernel::Communicator;
use mkernel::half::bf16;
use std::error::Error;
use std::process::ExitCode;

/// An error of any type.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The function that every rank runs.
pub type RankFunction = fn(&Communicator) -> Result<(), Failure>;

/// Runs `function` on each rank of this process.
pub fn run(function: RankFunction) -> ExitCode {
    let ran = Communicator::of_process()
        .map_err(Failure::from)
        .and_then(|ranks| Ok(mkernel::run(ranks, |ranks| function(&ranks))?));
    match ran {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the largest `value` of all ranks.
pub fn largest(ranks: &Communicator, value: f64) -> Result<f64, Failure> {
    let all = ranks.all_gather(&value.to_le_bytes())?;
    let values = all
        .iter()
        .filter_map(|bytes| Some(f64::from_le_bytes(bytes.as_slice().try_into().ok()?)));
    Ok(values.fold(0.0, f64::max))
}

/// Returns a matrix, row by row.
pub fn matrix(rows: u64, cols: u64, value: impl Fn(u64, u64) -> bf16) -> Vec<bf16> {
    (0..rows)
        .flat_map(|row| (0..cols).map(move |col| (row, col)))
        .map(|(row, col)| value(row, col))
        .collect()
}

/// Returns a number between -1 and 1 that depends only on `index`, so that every rank can compute the operands of other
/// ranks. The function is splitmix64.
pub fn random(index: u64) -> bf16 {
    let mut x = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bf16::from_f32((x >> 40) as f32 / (1 << 23) as f32 - 1.0)
}

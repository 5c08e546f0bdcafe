//! Runs benchmarks on the GPUs of this host, with a thread for each rank.

use crate::lab::Failure;
use mkernel::Communicator;
use mkernel::spec::Device;
use std::process::ExitCode;

/// Returns the number of ranks of a test that may share a GPU: `MKERNEL_TEST_RANKS_PER_GPU`, or 1.
///
/// # Panics
/// The variable is not a number from 1 on.
#[must_use]
pub fn ranks_per_gpu() -> usize {
    let given = std::env::var("MKERNEL_TEST_RANKS_PER_GPU");
    let number = given.map_or(Ok(1), |text| text.parse());
    match number {
        Ok(1..) => number.unwrap_or(1),
        _ => panic!("MKERNEL_TEST_RANKS_PER_GPU is not a number from 1 on"),
    }
}

/// Returns the GPU of each of `world` ranks. Ranks share GPUs if the host has too few GPUs and [`ranks_per_gpu`] allows
/// sharing.
///
/// # Errors
/// There is no driver.
pub fn gpus_of_ranks(world: u32) -> Result<Vec<usize>, mkernel::Error> {
    let wanted = (world as usize).div_ceil(ranks_per_gpu());
    let used = (world as usize).min(mkernel::device_count()?.max(wanted));
    Ok((0..world as usize).map(|rank| rank % used.max(1)).collect())
}

/// Returns the devices on which the tests of a GPU host run with `world` ranks: a whole H200, and for several ranks one
/// rank's part of an H200 that all ranks share.
#[must_use]
pub fn devices_of_tests(world: u32) -> Vec<Device> {
    let whole = Device::h200();
    let shared = whole.part(world).filter(|_| world > 1);
    shared.into_iter().chain([whole]).collect()
}

/// Runs `body` on every rank of a communicator on the first GPUs of this host, on a thread to which the rank's GPU is bound.
/// Returns the results of `body`, by rank.
///
/// # Errors
/// The host has fewer GPUs, or `body` fails or panics. Failures are printed at once and for all ranks, since the
/// failure of one rank causes failures of other ranks.
pub fn on_gpus<T: Send>(
    world: u32,
    body: impl Fn(&Communicator) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let communicators = Communicator::local(&gpus_of_ranks(world)?)?;
    std::thread::scope(|scope| {
        let body = &body;
        let start = |ranks: Communicator| {
            scope.spawn(move || {
                let rank = ranks.rank();
                let bound = ranks.context().bind_to_thread();
                let result = bound.map_err(Failure::from).and_then(|()| body(&ranks));
                result.inspect_err(|error| eprintln!("rank {rank}: {error}"))
            })
        };
        let threads: Vec<_> = communicators.into_iter().map(start).collect();
        let results = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "the thread of a rank panicked")?);
        // All threads are joined before the first failure is returned.
        results.collect::<Vec<_>>().into_iter().collect()
    })
}

/// Prints a failure with its causes, and returns the exit code of the program.
#[must_use]
pub fn exit_code(result: Result<(), Failure>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("Caused by: {error}");
        cause = error.source();
    }
    ExitCode::FAILURE
}

//! Runs benchmarks on the GPUs of this host, with a thread for each rank.

use crate::lab::Failure;
use mkernel::Communicator;
use std::process::ExitCode;

/// Runs `body` on every rank of a communicator of the first `world` GPUs, on a thread to which the GPU is bound. Returns what
/// it returns, by rank.
///
/// # Errors
/// There are fewer GPUs, or `body` fails or panics. Failures are printed at once and for all ranks, since the failure of one
/// rank causes those of others.
pub fn on_gpus<T: Send>(
    world: u32,
    body: impl Fn(&Communicator) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let gpus: Vec<usize> = (0..world as usize).collect();
    let communicators = Communicator::local(&gpus)?;
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

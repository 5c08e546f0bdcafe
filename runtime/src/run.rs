//! [`run`]: calls a function for each rank of this process.

use crate::communicator::Communicator;
use crate::error::{Error, ErrorKind, with_causes};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An error of any type.
type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Calls `job` for each communicator, in a thread of its own, and returns the results in the order of the communicators.
///
/// ```
/// use mkernel::{Communicator, Simulation};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let simulated = Communicator::simulated(&Simulation { ranks: 2, ..Simulation::default() })?;
/// let numbers = mkernel::run(simulated, |ranks| {
///     ranks.barrier()?;
///     Ok::<_, mkernel::Error>(ranks.rank())
/// })?;
/// assert_eq!(numbers, [0, 1]);
/// # Ok(())
/// # }
/// ```
///
/// [`Communicator::of_process`] returns the communicators of a program that runs with and without a launcher.
///
/// # Errors
/// [`RunError`] has the errors and panics of all ranks, causes first.
pub fn run<T, E>(
    communicators: Vec<Communicator>,
    job: impl Fn(Communicator) -> Result<T, E> + Sync,
) -> Result<Vec<T>, RunError>
where
    T: Send,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let on_rank = |ranks: Communicator| {
        let rank = ranks.rank();
        let ended = catch_unwind(AssertUnwindSafe(|| job(ranks).map_err(Into::into)));
        match ended {
            Ok(result) => result.map_err(|error| (rank, Failure::Error(error))),
            Err(panic) => Err((rank, Failure::Panic(message(&*panic)))),
        }
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let spawn = |ranks| scope.spawn(|| on_rank(ranks));
        let threads: Vec<_> = communicators.into_iter().map(spawn).collect();
        let threads = threads.into_iter();
        // The thread itself catches panics of the job.
        threads.filter_map(|thread| thread.join().ok()).collect()
    });
    let (mut values, mut failures) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(failure) => failures.push(failure),
        }
    }
    failures.sort_by_key(|(_, failure)| failure.order());
    match failures.is_empty() {
        true => Ok(values),
        false => Err(RunError(failures)),
    }
}

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

enum Failure {
    Panic(String),
    Error(AnyError),
}

impl Failure {
    /// Returns the place of this failure in a report. A panic causes errors of other ranks, and so does any error that is not
    /// about another rank.
    fn order(&self) -> u32 {
        let kind = match self {
            Self::Panic(_) => return 0,
            Self::Error(error) => error.downcast_ref::<Error>().map(Error::kind),
        };
        match kind {
            Some(ErrorKind::RankLost | ErrorKind::Aborted) => 3,
            Some(ErrorKind::Timeout | ErrorKind::Rendezvous) => 2,
            _ => 1,
        }
    }
}

/// The errors and panics of ranks, with their ranks. `Debug` shows the text of `Display`.
pub struct RunError(Vec<(u32, Failure)>);

impl RunError {
    /// Returns the rank that failed first, as far as the errors show it, and its error. A panic has no error.
    #[must_use]
    pub fn cause(
        &self,
    ) -> (
        u32,
        Option<&(dyn std::error::Error + Send + Sync + 'static)>,
    ) {
        match self.0.first() {
            Some((rank, Failure::Error(error))) => (*rank, Some(&**error)),
            Some((rank, Failure::Panic(_))) => (*rank, None),
            None => (0, None),
        }
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (rank, failure)) in self.0.iter().enumerate() {
            f.write_str(if i > 0 { "\n" } else { "" })?;
            match failure {
                Failure::Panic(message) => write!(f, "rank {rank} has panicked: {message}")?,
                Failure::Error(error) => write!(f, "rank {rank}: {}", with_causes(&**error))?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for RunError {}

//! One operator on all ranks, for tests of single calls and of their errors.

use super::buffer::Elements;
use super::machine::Machine;
use super::simulated::Backend;
use mkernel::cudarc::driver::CudaStream;
use mkernel::spec::abi::OperandSpec;
use mkernel::{Communicator, Error, ErrorKind, KernelConfig, Operator, Shape};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The deadline of a wait in calls whose errors are expected.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// An operator that one rank has prepared.
pub struct Prepared<'a> {
    /// The communicator of the rank.
    pub ranks: &'a Communicator,
    /// The operator.
    pub operator: Operator,
    /// The stream of its calls.
    pub stream: Arc<CudaStream>,
}

/// Prepares an operator on simulated GPUs with this number of SMs, runs `body` on every rank, and returns the outcomes by
/// rank. Waits have [`DEADLINE`].
///
/// # Panics
/// The communicators cannot be created.
pub fn on_ranks(
    config: &KernelConfig,
    shape: impl Into<Shape>,
    (sms, seed): (u32, u64),
    body: impl Fn(&Prepared<'_>) -> Result<(), Error> + Sync,
) -> Vec<Result<(), String>> {
    let machine = Machine {
        world: config.world,
        sms,
        skew: 60,
    };
    let shape = shape.into();
    let outcomes = machine.run_ranks(Backend::Simulated { seed }, |ranks, _| {
        let operator = ranks.prepare(config, shape)?;
        ranks.set_timeout(DEADLINE);
        let stream = ranks.default_stream();
        let prepared = Prepared {
            ranks,
            operator,
            stream,
        };
        Ok(body(&prepared)?)
    });
    outcomes.expect("communicators")
}

/// Runs `body` on every rank, as [`on_ranks`] does.
///
/// # Panics
/// The communicators cannot be created, or a rank fails.
pub fn all_succeed(
    config: &KernelConfig,
    shape: impl Into<Shape>,
    (sms, seed): (u32, u64),
    body: impl Fn(&Prepared<'_>) -> Result<(), Error> + Sync,
) {
    let outcomes = on_ranks(config, shape, (sms, seed), body);
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(outcome, Ok(()), "{config:?}, rank {rank}");
    }
}

impl Prepared<'_> {
    /// Makes a call with this number of rows, which the call reads from memory, and waits for the call. All elements of
    /// its operands are one.
    ///
    /// # Errors
    /// The call is refused or fails.
    ///
    /// # Panics
    /// The GPU has no memory for the operands.
    pub fn call_with_rows(&self, rows: i32) -> Result<(), Error> {
        let specs = self.operator.plan().operands();
        let mut operands: Vec<_> = specs.iter().map(|spec| self.ones(spec)).collect();
        let rows = self.stream.clone_htod(&[rows]).expect("memory");
        let mut call = self.operator.call(&self.stream);
        for (spec, elements) in specs.iter().zip(&mut operands) {
            call = match spec.written {
                false => elements.read_by(call, spec.operand),
                true => elements.written_by(call, spec.operand),
            };
        }
        call.rows_in(&rows).launch()?;
        self.ranks.synchronize(&self.stream)
    }

    /// Checks that calls with more than `most` rows and with a negative number of rows are errors, and that a call with `most` rows
    /// is right after these errors.
    ///
    /// # Errors
    /// The call with `most` rows fails.
    ///
    /// # Panics
    /// Another call is right, or its error does not name the call and its rows.
    pub fn expect_most_rows(&self, most: i32) -> Result<(), Error> {
        for (call, rows) in [(1, most + 1), (2, -1)] {
            let part = format!(": the call has {rows} rows");
            expect_wrong_values(self.call_with_rows(rows), call, &part);
        }
        self.call_with_rows(most)
    }

    /// Allocates this rank's part of an operand, filled with ones. A part without rows has one element, since no
    /// allocation is empty.
    fn ones(&self, spec: &OperandSpec) -> Elements {
        let elems = (spec.rows.on(self.ranks.rank()) * spec.cols).max(1) as usize;
        Elements::upload(self.ranks, &self.stream, spec, &vec![1.0; elems]).expect("memory")
    }
}

/// Makes a call, and returns its error, which must come long before [`DEADLINE`]. Only the call itself is timed, since
/// a machine may wait for the machines of other tests before it starts.
///
/// # Panics
/// The call succeeded, or its error came late.
pub fn error_at_once(call: impl FnOnce() -> Result<(), Error>) -> Error {
    let started = Instant::now();
    let error = call().expect_err("an error");
    let took = started.elapsed();
    assert!(took < DEADLINE / 2, "{error}, after {took:?}");
    error
}

/// Checks the outcomes of calls for which rank 1 gave another number of rows than the other ranks: every rank failed, and its
/// error says that a rank has `other` rows. On another node, the error may instead name a rank that got this error, since
/// calls that end early do not announce their rows to other nodes.
///
/// # Panics
/// A rank did not fail, or its error has another text.
pub fn expect_errors_with_rows(
    outcomes: Vec<Result<(), String>>,
    config: &KernelConfig,
    other: i32,
) {
    let local_world = (config.world / config.nodes) as usize;
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        let failure = outcome.expect_err("different rows");
        let [has, begins] = [format!("with {other} rows"), format!("with {other}. Give")];
        let is_named = failure.contains(&has) || failure.contains(&begins);
        let is_far = rank >= local_world;
        let is_named = is_named || is_far && failure.contains("its own error has the cause");
        assert!(is_named, "{config:?}, rank {rank}: {failure}");
    }
}

/// Checks that a call failed because of values in its operands, with an error that names the call and has this part. The operator is
/// the first of its communicator.
///
/// # Panics
/// The call succeeded, or its error is another one.
pub fn expect_wrong_values(result: Result<(), Error>, call: usize, part: &str) {
    let error = result.expect_err(part);
    assert_eq!(error.kind(), ErrorKind::Values, "{error}");
    let text = error.to_string();
    let named = format!("call {call} of operator 1 ");
    assert!(
        text.contains(&named) && text.contains(part),
        "{named}, {part}: {text}"
    );
}

/// Checks that a launch was refused because of its operands, with an error whose text has this part.
///
/// # Panics
/// The launch was not refused, or for another reason.
pub fn expect_refused(result: Result<(), Error>, part: &str) {
    let error = result.expect_err(part);
    assert_eq!(error.kind(), ErrorKind::Operands);
    assert!(error.to_string().contains(part), "{error}");
}

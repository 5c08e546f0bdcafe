//! [`OutcomeLine`]: the outcome of a run as a JSON object.

use super::exit_code::code;
use super::kernel_run::KernelRun;
use super::ranks::{Completed, Outcome, RankFailure};
use super::verdict::Mismatch;
use crate::cli::failure::chain;
use crate::cli::machine::Machine;
use crate::cli::output::Line;
use schemars::JsonSchema;
use serde::Serialize;

/// An error, and the ranks that have failed with it.
#[derive(Serialize, JsonSchema)]
pub struct RunError {
    pub ranks: Vec<u32>,
    pub reason: String,
}

/// The outcome of a run as a JSON object.
#[derive(Serialize, JsonSchema)]
pub struct OutcomeLine<'a> {
    label: &'a str,
    place: &'a str,
    ok: bool,
    id: &'a str,
    device: String,
    simulated: bool,
    ranks: u32,
    seed: u64,
    calls: u32,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    elements: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wrong: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    relative_error: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repeats: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch_invariant: Option<bool>,
    problems: Vec<RunError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<String>,
}

impl Line for OutcomeLine<'_> {
    const KIND: &'static str = "run";
}

impl<'a> OutcomeLine<'a> {
    /// The outcome of a run of a kernel.
    pub fn new(about: &'a KernelRun, outcome: &'a Outcome) -> Self {
        let ran = outcome.result.as_ref().ok();
        Self {
            label: &about.kernel.label,
            place: &about.kernel.location,
            ok: outcome.is_right(),
            id: ran.map_or(&about.plan.id, |ran| &ran.plan.id),
            device: about.device(),
            simulated: about.machine != Machine::Gpus,
            ranks: about.plan.spec.world(),
            seed: outcome.seed,
            calls: about.calls,
            seconds: outcome.time.as_secs_f64(),
            elements: ran.map(|ran| ran.verdict.elements),
            wrong: ran.map(|ran| ran.verdict.wrong),
            relative_error: ran.map(|ran| ran.verdict.relative_error()),
            repeats: ran.map(|ran| ran.repeats),
            batch_invariant: ran.and_then(|ran| ran.is_batch_invariant),
            problems: problems(outcome),
            replay: (code(outcome) == 1).then(|| about.repro_command(outcome.seed)),
        }
    }
}

/// Returns the errors of a run. Ranks with the same error share one entry.
pub fn problems(outcome: &Outcome) -> Vec<RunError> {
    let mut problems: Vec<RunError> = Vec::new();
    let wrong = |ran: &Completed| ran.verdict.first_wrong.map(first_wrong).into_iter();
    let failed = match &outcome.result {
        Ok(ran) => return wrong(ran).collect(),
        Err(failed) => failed,
    };
    for RankFailure { rank, error } in failed {
        let reason = chain(error);
        match problems.iter_mut().find(|problem| problem.reason == reason) {
            Some(problem) => problem.ranks.extend(rank),
            None => problems.push(RunError {
                ranks: rank.iter().copied().collect(),
                reason,
            }),
        }
    }
    problems
}

fn first_wrong(wrong: Mismatch) -> RunError {
    let Mismatch {
        call,
        rank,
        operand,
        row,
        col,
        found,
        expected,
    } = wrong;
    RunError {
        ranks: vec![rank],
        reason: format!(
            "first wrong element, in call {call}: {operand}[{row}, {col}] is {found}, expected {expected}"
        ),
    }
}

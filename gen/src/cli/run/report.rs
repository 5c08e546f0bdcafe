//! The report of `mkernel-gen run`: a heading for each kernel, a line for each seed, errors in full, and the command
//! that repeats a failed run.

use super::ranks::{Completed, Outcome, RankError, RankFailure};
use super::repro_command;
use super::verdict::{Mismatch, rounding_alone};
use crate::cli::failure::{Failure, chain, exit_code};
use crate::cli::format::count;
use crate::cli::input::Kernel;
use crate::cli::machine::Machine;
use crate::cli::output::{print, print_json};
use crate::cli::plan;
use mkernel::{
    Error, KernelPlan,
    error::{DeviceError, EnvironmentError, SimulatorError},
};
use serde::Serialize;

/// The properties that all runs of one kernel share.
pub struct KernelRun<'a> {
    pub kernel: &'a Kernel,
    pub plan: &'a KernelPlan,
    pub machine: Machine,
    pub calls: u32,
}

impl KernelRun<'_> {
    /// Describes the GPUs, as in `2 simulated GPUs with 8 SMs, skew 20`.
    fn device(&self) -> String {
        let world = self.plan.spec.world() as usize;
        match self.machine {
            Machine::Gpus => count(world, "GPU"),
            Machine::Simulated(simulated) => format!(
                "{} with {}, skew {}",
                count(world, "simulated GPU"),
                count(simulated.sms as usize, "SM"),
                simulated.skew
            ),
        }
    }

    /// The command that repeats the run with `seed`.
    fn repro_command(&self, seed: u64) -> String {
        let device = match self.machine {
            Machine::Gpus => "gpu",
            Machine::Simulated(_) => "sim",
        };
        repro_command::command(std::env::args_os(), seed, device)
    }
}

/// An error, and the ranks that have failed with it.
#[derive(Serialize)]
pub struct RunError {
    pub ranks: Vec<u32>,
    pub reason: String,
}

/// The outcome of a run as a JSON object.
#[derive(Serialize)]
struct OutcomeLine<'a> {
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

/// Prints outcomes, and counts those that failed.
pub struct Report {
    json: bool,
    ran: usize,
    failed: usize,
    code: u8,
    plan_is_shown: bool,
}

impl Report {
    /// An empty report. With `json` outcomes are printed as JSON lines.
    pub fn new(json: bool) -> Self {
        Self {
            json,
            ran: 0,
            failed: 0,
            code: 0,
            plan_is_shown: false,
        }
    }

    /// Prints the heading of a kernel.
    pub fn kernel(&mut self, about: &KernelRun) -> Result<(), Failure> {
        self.plan_is_shown = self.json;
        if self.json {
            return Ok(());
        }
        let formula = plan::computes(about.plan);
        let (label, device) = (&about.kernel.label, about.device());
        print(&format!("{label}: {formula}\n  on        {device}\n"))
    }

    /// Prints the outcome of a run.
    pub fn outcome(&mut self, about: &KernelRun, outcome: &Outcome) -> Result<(), Failure> {
        self.ran += 1;
        if !outcome.is_right() {
            self.failed += 1;
            self.code = self.code.max(code(outcome));
        }
        if self.json {
            return print_json(&line(about, outcome));
        }
        let mut text = String::new();
        if !self.plan_is_shown {
            self.plan_is_shown = true;
            let plan = outcome.result.as_ref().map_or(about.plan, |ran| &ran.plan);
            text += &format!("  plan      {}\n", plan::summary(plan));
        }
        text += &describe(about, outcome);
        print(&text)
    }

    /// Whether a run failed because of the machine, and not because of its kernel.
    pub fn machine_is_at_fault(&self) -> bool {
        self.code == 4
    }

    /// Fails if a run has failed.
    pub fn finish(&self) -> Result<(), Failure> {
        if self.failed == 0 {
            return Ok(());
        }
        Err(Failure::Runs {
            failed: self.failed,
            ran: self.ran,
            code: self.code,
        })
    }
}

/// Whether the run failed because of the machine or the compiler, so that other seeds would fail too.
pub fn is_same_for_all_seeds(outcome: &Outcome) -> bool {
    code(outcome) > 1
}

/// The exit code: 1 if the kernel has a wrong result, hangs or races, 3 if it does not compile, 4 if the machine is at
/// fault.
pub fn code(outcome: &Outcome) -> u8 {
    let of = |failed: &RankFailure| match &failed.error {
        RankError::Runtime(Error::Build { source, .. }) => exit_code(source),
        RankError::Runtime(
            Error::Device(
                DeviceError::DriverMissing(_)
                | DeviceError::DriverTooOld { .. }
                | DeviceError::NoDevice { .. }
                | DeviceError::UnsupportedDevice { .. }
                | DeviceError::NoPeerAccess { .. }
                | DeviceError::NoNvLink { .. }
                | DeviceError::BackendConflict { .. },
            )
            | Error::Simulator(SimulatorError::Driver(_) | SimulatorError::NotBuilt)
            | Error::Environment(EnvironmentError::Variable { .. })
            | Error::OpenFiles { .. }
            | Error::Os { .. },
        ) => 4,
        _ => 1,
    };
    match &outcome.result {
        Ok(_) => u8::from(!outcome.is_right()),
        Err(failed) => failed.iter().map(of).max().unwrap_or(1),
    }
}

fn describe(about: &KernelRun, outcome: &Outcome) -> String {
    let seconds = outcome.time.as_secs_f64();
    let mut text = format!("  seed {:<4} ", outcome.seed);
    match &outcome.result {
        Ok(ran) => text += &format!("{}, {seconds:.2} s\n", found(ran, about.calls)),
        Err(_) => text += &format!("failed after {seconds:.2} s\n"),
    }
    for problem in problems(outcome) {
        let who = match problem.ranks.as_slice() {
            [] => "all ranks".to_owned(),
            [one] => format!("rank {one}"),
            several => {
                let list: Vec<_> = several.iter().map(u32::to_string).collect();
                format!("ranks {}", list.join(", "))
            }
        };
        let reason = problem.reason.replace('\n', "\n            ");
        text += &format!("          {who}: {reason}\n");
    }
    if code(outcome) == 1 {
        text += &format!(
            "          to repeat: {}\n",
            about.repro_command(outcome.seed)
        );
    }
    text
}

/// Describes the result of the comparison of every element.
fn found(ran: &Completed, calls: u32) -> String {
    let verdict = &ran.verdict;
    let (elements, wrong) = (verdict.elements, verdict.wrong);
    let calls = count(calls as usize, "call");
    let mut text = match wrong {
        0 => format!("correct: all {elements} elements of {calls}"),
        _ => format!("WRONG: {wrong} of {elements} elements of {calls}"),
    };
    text += &format!(", relative error {:.2e}", verdict.relative_error());
    text += &rounding_alone(&ran.plan);
    let bits = |same| {
        if same {
            "bitwise identical"
        } else {
            "DIFFERENT BITS"
        }
    };
    text += &format!(", {} when repeated", bits(ran.repeats));
    if let Some(same) = ran.is_batch_invariant {
        text += &format!(", {} in another batch", bits(same));
    }
    text
}

/// The errors of a run. Ranks with the same error share one entry.
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

fn line<'a>(about: &'a KernelRun, outcome: &'a Outcome) -> OutcomeLine<'a> {
    let ran = outcome.result.as_ref().ok();
    OutcomeLine {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::machine::Simulated;
    use mkernel::{
        KernelConfig,
        spec::{BLayout, Device, Dim, GemmConfig, GemmOp, KernelSpec},
    };
    use std::time::Duration;

    fn outcome(result: Result<Completed, Vec<RankFailure>>) -> Outcome {
        Outcome {
            seed: 7,
            time: Duration::from_millis(1500),
            result,
            timeline: String::new(),
        }
    }

    fn failed(rank: u32, error: Error) -> RankFailure {
        RankFailure {
            rank: Some(rank),
            error: error.into(),
        }
    }

    fn text(outcome: &Outcome) -> String {
        let config = GemmConfig {
            m: Dim::Static(128),
            n: Dim::Static(64),
            k: Dim::Static(64),
            b_layout: BLayout::Nk,
            ..GemmConfig::new(GemmOp::AgGemm)
        };
        let spec = KernelSpec::validate(KernelConfig::new(2, config)).expect("valid");
        let sized = spec.clone().sized().expect("sizes");
        let plan = KernelPlan::new(&sized, &Device::simulated(2)).expect("a plan");
        let kernel = Kernel {
            label: "k".into(),
            location: "flags".into(),
            spec,
            plan: None,
            is_for_any_world: false,
        };
        let machine = Machine::Simulated(Simulated {
            sms: 2,
            skew: 5,
            timeline: false,
        });
        let about = KernelRun {
            kernel: &kernel,
            plan: &plan,
            machine,
            calls: 3,
        };
        describe(&about, outcome)
    }

    #[test]
    fn ranks_with_the_same_error_share_a_line() {
        let waited = Duration::from_secs(30);
        let outcome = outcome(Err(vec![
            failed(0, Error::StillBusy { waited }),
            failed(1, Error::Aborted { cause: None }),
            failed(3, Error::StillBusy { waited }),
        ]));
        let text = text(&outcome);
        assert_eq!(code(&outcome), 1);
        assert!(!is_same_for_all_seeds(&outcome));
        assert!(
            text.starts_with("  seed 7    failed after 1.50 s\n"),
            "{text}"
        );
        assert_eq!(text.matches("ranks 0, 3: ").count(), 1, "{text}");
        assert!(text.contains("rank 1: "), "{text}");
        let last = text.lines().last().unwrap_or("");
        assert!(
            last.contains("to repeat: ") && last.ends_with("--device sim --seed 7"),
            "{text}"
        );
    }

    #[test]
    fn a_missing_simulator_fails_for_all_seeds() {
        let outcome = outcome(Err(vec![RankFailure {
            rank: None,
            error: Error::Simulator(SimulatorError::NotBuilt).into(),
        }]));
        assert_eq!(code(&outcome), 4);
        assert!(is_same_for_all_seeds(&outcome));
        assert!(!text(&outcome).contains("to repeat: "));
    }
}

//! The report of `mkernel-gen run`: a heading for each kernel, a line for each seed, errors in full, and the command
//! that repeats a failed run.

use super::exit_code::code;
use super::junit::Junit;
use super::kernel_run::KernelRun;
use super::outcome_line::{OutcomeLine, problems};
use super::ranks::{Completed, Outcome};
use super::summary::Summary;
use super::verdict::rounding_alone;
use crate::cli::failure::Failure;
use crate::cli::format::count;
use crate::cli::output::{print, print_json};
use crate::cli::{plan, progress};
use indicatif::ProgressBar;
use std::path::Path;
use std::time::Instant;

/// Prints outcomes, and counts the runs that were not right.
pub struct Report {
    json: bool,
    junit: Option<Junit>,
    total: u64,
    right: u64,
    wrong: u64,
    failed: u64,
    code: u8,
    /// The index of the kernel whose heading was printed last.
    shown: Option<usize>,
    plan_is_shown: bool,
    started: Instant,
    progress: ProgressBar,
}

impl Report {
    /// An empty report of `total` runs. With `json` outcomes are printed as JSON lines. `junit` is a file for JUnit XML.
    pub fn new((json, junit): (bool, Option<&Path>), total: u64) -> Self {
        let template = "running {wide_bar} {pos}/{len} runs {msg}{elapsed}, about {eta} left";
        Self {
            json,
            junit: junit.map(Junit::new),
            total,
            right: 0,
            wrong: 0,
            failed: 0,
            code: 0,
            shown: None,
            plan_is_shown: false,
            started: Instant::now(),
            progress: progress::bar(template, total),
        }
    }

    /// Prints the heading of a kernel before its first outcome.
    pub fn kernel(&mut self, index: usize, about: &KernelRun) -> Result<(), Failure> {
        if self.json || self.shown == Some(index) {
            return Ok(());
        }
        self.shown = Some(index);
        self.plan_is_shown = false;
        let formula = plan::computes(about.plan);
        let (label, device) = (&about.kernel.label, about.device());
        let text = format!("{label}: {formula}\n  on        {device}\n");
        self.progress.suspend(|| print(&text))
    }

    /// Prints the outcome of a run.
    pub fn outcome(&mut self, about: &KernelRun, outcome: &Outcome) -> Result<(), Failure> {
        match (outcome.is_right(), &outcome.result) {
            (true, _) => self.right += 1,
            (false, Ok(_)) => self.wrong += 1,
            (false, Err(_)) => self.failed += 1,
        }
        self.code = self.code.max(code(outcome));
        self.progress.inc(1);
        match self.wrong + self.failed {
            0 => {}
            not_right => self
                .progress
                .set_message(format!("({not_right} not right) ")),
        }
        let description = describe(about, outcome);
        if let Some(junit) = &mut self.junit {
            junit.add(about, outcome, &description);
        }
        if self.json {
            return self
                .progress
                .suspend(|| print_json(&OutcomeLine::new(about, outcome)));
        }
        let mut text = String::new();
        if !self.plan_is_shown {
            self.plan_is_shown = true;
            let plan = outcome.result.as_ref().map_or(about.plan, |ran| &ran.plan);
            text += &format!("  plan      {}\n", plan::summary(plan));
        }
        text += &description;
        self.progress.suspend(|| print(&text))
    }

    /// Prints the numbers of runs, and writes the file of JUnit XML.
    pub fn summary(&self, interrupted: bool) -> Result<(), Failure> {
        self.progress.finish_and_clear();
        if let Some(junit) = &self.junit {
            junit.write()?;
        }
        let summary = Summary {
            ok: self.right == self.total,
            right: self.right,
            wrong: self.wrong,
            failed: self.failed,
            not_run: self.total - self.right - self.wrong - self.failed,
            interrupted,
            seconds: self.started.elapsed().as_secs_f64(),
        };
        match self.json {
            true => print_json(&summary),
            false => print(&summary.text()),
        }
    }

    /// Whether a run failed because of the machine, and not because of its kernel.
    pub fn machine_is_at_fault(&self) -> bool {
        self.code == 4
    }

    /// Prints the summary, and fails if a run has failed.
    pub fn finish(&self) -> Result<(), Failure> {
        self.summary(false)?;
        let not_right = self.wrong + self.failed;
        if not_right == 0 {
            return Ok(());
        }
        Err(Failure::Runs {
            failed: not_right,
            ran: self.right + not_right,
            code: self.code,
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::input::Kernel;
    use crate::cli::machine::{Machine, Simulated};
    use crate::cli::run::exit_code::is_same_for_all_seeds;
    use crate::cli::run::ranks::RankFailure;
    use mkernel::{Error, error::SimulatorError};
    use mkernel::{
        KernelConfig, KernelPlan,
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
            chosen_by: None,
            rank: None,
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

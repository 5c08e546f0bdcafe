//! [`Measurement`]: the times of a kernel beside its bound and its rivals, as a line of JSON.

use crate::cli::failure::Failure;
use crate::cli::files::read_text;
use crate::cli::output::{Line, SCHEMA};
use mkernel_declare::SpannedDiagnostic;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The times of a kernel of one size on one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measurement {
    pub host: String,
    pub gpu: String,
    /// The name in messages, with sizes.
    pub label: String,
    pub op: String,
    /// The type of the first operand.
    pub dtype: String,
    pub ranks: u32,
    pub nodes: u32,
    pub sizes: BTreeMap<String, u64>,
    /// The identifier of the plan.
    pub id: String,
    /// Whether the result was compared with a reference before the kernel was timed.
    pub checked: bool,
    pub rounds: u32,
    /// The number of calls of a CUDA graph.
    pub calls: u32,
    /// The number of copies of the operands, which calls take in turn.
    pub copies: u32,
    /// The clock of the SMs of rank 0 in MHz, before and after the rounds. `None` without NVML.
    pub sm_mhz: Option<[u32; 2]>,
    #[serde(flatten)]
    pub time: Time,
    pub bound_us: f64,
    pub bound_reason: String,
    pub estimate_us: f64,
    pub rivals: Vec<Rival>,
    /// Differences between the kernel and its rivals, and rivals that were not measured.
    pub notes: Vec<String>,
}

impl Line for Measurement {
    const KIND: &'static str = "bench";
}

/// The time of a call on its slowest rank, over all rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Time {
    /// The median.
    pub us: f64,
    pub min_us: f64,
    pub max_us: f64,
}

/// The time of a rival.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rival {
    pub name: String,
    #[serde(flatten)]
    pub time: Time,
}

impl Time {
    /// The time of several rounds. `None` without rounds.
    pub fn of(rounds: &[f64]) -> Option<Self> {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            us: *sorted.get(sorted.len() / 2)?,
            min_us: *sorted.first()?,
            max_us: *sorted.last()?,
        })
    }

    /// Whether plots can show the time on a logarithmic axis.
    fn is_possible(&self) -> bool {
        [self.us, self.min_us, self.max_us]
            .iter()
            .all(|us| is_time(*us))
    }
}

fn is_time(us: f64) -> bool {
    us.is_finite() && us > 0.0
}

impl Measurement {
    /// The share of the time that the bound explains, from 0 on.
    pub fn share_of_bound(&self) -> f64 {
        self.bound_us / self.time.us
    }

    /// The name of the kernel, without sizes.
    pub fn name(&self) -> &str {
        self.label.split(' ').next().unwrap_or(&self.label)
    }

    /// The clock of SMs before and after the rounds in MHz, or `-` if it is unknown.
    pub fn clock(&self) -> String {
        match self.sm_mhz {
            Some([before, after]) => format!("{before}..{after}"),
            None => "-".to_owned(),
        }
    }

    /// The time of a rival, if it was measured.
    pub fn rival(&self, name: &str) -> Option<Time> {
        let mut rivals = self.rivals.iter();
        Some(rivals.find(|rival| rival.name == name)?.time)
    }
}

/// The names of all rivals, each once.
pub fn rivals<'a>(all: impl IntoIterator<Item = &'a Measurement>) -> Vec<&'a str> {
    let mut names = Vec::new();
    for rival in all.into_iter().flat_map(|measured| &measured.rivals) {
        if !names.contains(&rival.name.as_str()) {
            names.push(&rival.name);
        }
    }
    names
}

/// All notes, each once, with the names of their kernels if not all kernels have the note.
pub fn notes<'a>(all: impl IntoIterator<Item = &'a Measurement>) -> Vec<String> {
    let all: Vec<_> = all.into_iter().collect();
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for (measured, note) in all
        .iter()
        .flat_map(|measured| measured.notes.iter().map(move |note| (measured, note)))
    {
        match found.iter_mut().find(|(known, _)| known == note) {
            Some((_, labels)) => labels.push(&measured.label),
            None => found.push((note, vec![&measured.label])),
        }
    }
    let text = |(note, labels): (&str, Vec<&str>)| match labels.len() {
        count if count == all.len() => note.to_owned(),
        _ => format!("{note} ({})", labels.join("; ")),
    };
    found.into_iter().map(text).collect()
}

/// Reads the measurements of files that `--out` or `--json` has written. Lines of kernels that failed are skipped.
pub fn read_all(paths: &[PathBuf]) -> Result<Vec<Measurement>, Failure> {
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for path in paths {
        let before = found.len() + wrong.len();
        for (number, line) in (1..).zip(read_text(path)?.lines()) {
            if line.trim().is_empty() {
                continue;
            }
            match parse(line) {
                Ok(measured) => found.extend(measured),
                Err((reason, help)) => wrong.push(SpannedDiagnostic {
                    span: format!("{}:{number}", path.display()),
                    reason,
                    help,
                }),
            }
        }
        if found.len() + wrong.len() == before {
            wrong.push(SpannedDiagnostic {
                span: path.display().to_string(),
                reason: "no measurement in this file".to_owned(),
                help: "give a file that `mkernel-gen bench --out` has written".to_owned(),
            });
        }
    }
    match wrong.is_empty() {
        true => Ok(found),
        false => Err(Failure::Results(wrong)),
    }
}

/// Parses a line. `None` for a run that failed. An error is a reason and a way out.
fn parse(line: &str) -> Result<Option<Measurement>, (String, String)> {
    let rewrite = "remove the line, or measure again by `mkernel-gen bench --out`";
    let wrong = |reason: String| (reason, rewrite.to_owned());
    let value: Value = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
    if value["ok"] == false {
        return Ok(None);
    }
    match value["schema"].as_u64() {
        Some(schema) if schema == u64::from(SCHEMA) => {}
        Some(schema) => {
            let reason =
                format!("the line has schema {schema}, and this program reads schema {SCHEMA}");
            return Err((
                reason,
                "use the mkernel-gen that has measured, or measure again".to_owned(),
            ));
        }
        None => return Err(wrong("the line has no schema".to_owned())),
    }
    let measured: Measurement =
        serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
    let rivals = measured.rivals.iter().map(|rival| rival.time);
    let mut times = rivals.chain([measured.time]);
    if !times.all(|time| time.is_possible()) || measured.bound_us.is_sign_negative() {
        return Err(wrong(
            "a time is not a number of µs above 0, or a bound is negative".to_owned(),
        ));
    }
    Ok(Some(measured))
}

#[cfg(test)]
pub fn example(m: u64, us: f64) -> Measurement {
    let time = |us: f64| Time {
        us,
        min_us: us * 0.9,
        max_us: us * 1.25,
    };
    let rival = |name: &str, us| Rival {
        name: name.to_owned(),
        time: time(us),
    };
    Measurement {
        host: "node-1".to_owned(),
        gpu: "NVIDIA H200".to_owned(),
        label: format!("gemm_ar m={m} n=8192 k=2048"),
        op: "gemm_ar".to_owned(),
        dtype: "bf16".to_owned(),
        ranks: 4,
        nodes: 1,
        sizes: [("m", m), ("n", 8192), ("k", 2048)]
            .map(|(name, size)| (name.to_owned(), size))
            .into(),
        id: "gemm_ar_sm90a_g4".to_owned(),
        checked: true,
        rounds: 11,
        calls: 20,
        copies: 8,
        sm_mhz: Some([1980, 1755]),
        time: time(us),
        bound_us: us / 2.0,
        bound_reason: "link".to_owned(),
        estimate_us: us * 0.8,
        rivals: vec![
            rival("cuBLAS, then NCCL", us * 1.5),
            rival("cuBLAS alone", us * 0.7),
        ],
        notes: vec!["torch: not compared".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::json_line;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let measured = example(16, 20.0);
        let line = json_line(&measured).expect("JSON");
        assert_eq!(parse(&line), Ok(Some(measured)));
        assert_eq!(parse(r#"{"ok": false, "label": "k"}"#), Ok(None));
    }

    #[test]
    fn wrong_lines_have_a_reason_and_a_way_out() {
        let mut never = example(16, 20.0);
        never.rivals[0].time.min_us = 0.0;
        let line = |measured: &Measurement| json_line(measured).expect("JSON");
        let other = line(&example(16, 20.0)).replace("\"schema\":1", "\"schema\":7");
        for (line, reason) in [
            ("{".to_owned(), "EOF"),
            ("{}".to_owned(), "no schema"),
            (other, "schema 7"),
            (line(&never), "above 0"),
            (r#"{"schema": 1}"#.to_owned(), "missing field"),
        ] {
            let (found, help) = parse(&line).expect_err("wrong");
            assert!(found.contains(reason), "{found}");
            assert!(help.contains("measure"), "{help}");
        }
    }

    #[test]
    fn the_median_and_the_spread() {
        let time = Time::of(&[3.0, 1.0, 2.0, 9.0, 2.5]).expect("rounds");
        assert_eq!((time.us, time.min_us, time.max_us), (2.5, 1.0, 9.0));
        assert_eq!(Time::of(&[]), None);
        assert_eq!(example(16, 20.0).share_of_bound(), 0.5);
    }

    #[test]
    fn a_note_of_some_kernels_names_them() {
        let mut all = [example(16, 20.0), example(32, 30.0)];
        all[1].notes.push("NCCL: not found".to_owned());
        let found = notes(&all);
        let last = "NCCL: not found (gemm_ar m=32 n=8192 k=2048)";
        assert_eq!(found, ["torch: not compared", last]);
        assert_eq!(rivals(&all), ["cuBLAS, then NCCL", "cuBLAS alone"]);
    }
}

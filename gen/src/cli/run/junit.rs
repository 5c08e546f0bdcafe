//! [`Junit`]: the outcomes of runs as JUnit XML.

use super::exit_code::code;
use super::kernel_run::KernelRun;
use super::ranks::Outcome;
use crate::cli::failure::Failure;
use crate::cli::files::write_text;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use std::path::{Path, PathBuf};

/// The outcomes so far: a suite for each kernel, and a test for each seed.
pub struct Junit {
    path: PathBuf,
    report: Report,
    /// The label and the place of the kernel of the last suite.
    last: Option<(String, String)>,
}

impl Junit {
    /// An empty report, which is written to a file.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            report: Report::new("mkernel-gen run"),
            last: None,
        }
    }

    /// Adds an outcome with its description. Outcomes of a kernel must follow each other.
    pub fn add(&mut self, about: &KernelRun, outcome: &Outcome, description: &str) {
        let label = about.kernel.label.as_str();
        let status = match (outcome.is_right(), &outcome.result, code(outcome)) {
            (true, ..) => TestCaseStatus::success(),
            (_, Ok(_), _) => not_right(NonSuccessKind::Failure, "wrong result", description),
            (_, Err(_), 4) => not_right(NonSuccessKind::Error, "environment", description),
            (_, Err(_), _) => not_right(NonSuccessKind::Failure, "no result", description),
        };
        let mut case = TestCase::new(format!("seed {}", outcome.seed), status);
        case.set_classname(label).set_time(outcome.time);
        if outcome.is_right() {
            case.set_system_out(description);
        }
        let suites = &mut self.report.test_suites;
        let kernel = Some((label.to_owned(), about.kernel.location.clone()));
        if self.last != kernel {
            self.last = kernel;
            suites.push(TestSuite::new(label));
        }
        if let Some(suite) = suites.last_mut() {
            suite.add_test_case(case);
        }
        self.report.tests += 1;
        self.report.failures += usize::from(!outcome.is_right() && code(outcome) != 4);
        self.report.errors += usize::from(!outcome.is_right() && code(outcome) == 4);
    }

    /// Writes the file.
    pub fn write(&self) -> Result<(), Failure> {
        let xml = self.report.to_string().map_err(|error| Failure::Write {
            path: self.path.clone(),
            source: std::io::Error::other(error),
        })?;
        write_text(&self.path, &xml)
    }
}

fn not_right(kind: NonSuccessKind, what: &str, description: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::non_success(kind);
    status.set_message(what).set_description(description);
    status
}

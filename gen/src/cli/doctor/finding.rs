//! [`Finding`]: the result of one examination. A fault and a lack cannot be named without a remedy.

use crate::cli::output::{ERROR, FINE, Line, WARNING};
use schemars::JsonSchema;
use serde::Serialize;

/// The weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Ok,
    /// Something that only some programs need is missing.
    Note,
    Fault,
}

/// The result of one examination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    check: &'static str,
    found: String,
    /// The remedy, and whether there is a fault. `None` if everything is fine.
    remedy: Option<(State, String)>,
}

/// A finding as a JSON object. All findings but those with state `ok` have a remedy.
#[derive(Serialize, JsonSchema)]
pub struct FindingLine<'a> {
    check: &'a str,
    state: State,
    found: &'a str,
    remedy: Option<&'a str>,
}

impl Line for FindingLine<'_> {
    const KIND: &'static str = "finding";
}

impl Finding {
    /// Everything is fine.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            found: found.into(),
            remedy: None,
        }
    }

    /// Something is missing or slow, which not all programs need. `remedy` is a command or an instruction.
    pub fn note(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some((State::Note, remedy.into())),
            ..Self::ok(check, found)
        }
    }

    /// Something does not work. `remedy` is a command or an instruction.
    pub fn fault(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some((State::Fault, remedy.into())),
            ..Self::ok(check, found)
        }
    }

    /// The finding as a JSON object.
    pub fn line(&self) -> FindingLine<'_> {
        FindingLine {
            check: self.check,
            state: self.state(),
            found: &self.found,
            remedy: self.remedy.as_ref().map(|(_, remedy)| &**remedy),
        }
    }

    pub fn state(&self) -> State {
        self.remedy.as_ref().map_or(State::Ok, |(state, _)| *state)
    }

    /// A line with the finding, and a line with the remedy if there is one.
    pub fn text(&self) -> String {
        const INDENT: &str = "\n                   ";
        let (style, state) = match self.state() {
            State::Ok => (FINE, "ok"),
            State::Note => (WARNING, "note"),
            State::Fault => (ERROR, "FAULT"),
        };
        let found = self.found.replace('\n', INDENT);
        let mut text = format!("{style}{state:<6}{style:#} {:<11} {found}", self.check);
        if let Some((_, remedy)) = &self.remedy {
            text += &format!("{INDENT}remedy: {}", remedy.replace('\n', INDENT));
        }
        text + "\n"
    }
}

//! [`Outcome`]: the result of one check. A check that fails cannot do so without a remedy.

use crate::cli::output::{ERROR, FINE, Line, WARNING};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a check passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Pass,
    Fail,
    NotChecked,
    /// A step that a person has to take.
    Manual,
}

/// A figure that a check has measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figure {
    pub name: String,
    pub value: f64,
    pub unit: String,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub state: State,
    /// What was found, why there was no check, or the manual step.
    pub found: String,
    /// What to do about a failure, or the command of a manual step.
    pub remedy: Option<String>,
    pub figures: Vec<Figure>,
}

/// The result of one check as a JSON object. A failure and a manual step have a remedy.
#[derive(Serialize, JsonSchema)]
pub struct CheckLine<'a> {
    check: &'a str,
    state: State,
    found: &'a str,
    remedy: Option<&'a str>,
    figures: &'a [Figure],
}

impl Line for CheckLine<'_> {
    const KIND: &'static str = "nic-check";
}

impl Outcome {
    fn new(state: State, found: impl Into<String>, remedy: Option<String>) -> Self {
        let found = found.into();
        Self {
            state,
            found,
            remedy,
            figures: Vec::new(),
        }
    }

    pub fn pass(found: impl Into<String>) -> Self {
        Self::new(State::Pass, found, None)
    }

    pub fn fail(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(State::Fail, found, Some(remedy.into()))
    }

    /// There was no check, for the given reason.
    pub fn not_checked(reason: impl Into<String>) -> Self {
        Self::new(State::NotChecked, reason, None)
    }

    /// A step for a person, with its command.
    pub fn manual(step: impl Into<String>, command: impl Into<String>) -> Self {
        Self::new(State::Manual, step, Some(command.into()))
    }

    pub fn with_figures(self, figures: Vec<Figure>) -> Self {
        Self { figures, ..self }
    }

    /// Combines the outcomes of all ranks that took part: the first failure if there is one, otherwise the first outcome with
    /// the figures of all ranks.
    pub fn merged(of_ranks: Vec<Option<Self>>) -> Self {
        let mut first: Option<Self> = None;
        for (rank, outcome) in of_ranks.into_iter().enumerate() {
            let Some(mut outcome) = outcome else {
                continue;
            };
            if outcome.state == State::Fail {
                outcome.found = format!("on rank {rank}: {}", outcome.found);
                return outcome;
            }
            match &mut first {
                None => first = Some(outcome),
                Some(first) => first.figures.append(&mut outcome.figures),
            }
        }
        first.unwrap_or_else(|| Self::not_checked("no rank took part"))
    }

    pub fn line<'a>(&'a self, check: &'a str) -> CheckLine<'a> {
        CheckLine {
            check,
            state: self.state,
            found: &self.found,
            remedy: self.remedy.as_deref(),
            figures: &self.figures,
        }
    }

    /// Lines with the result, the figures, and the remedy if there is one.
    pub fn text(&self, check: &str) -> String {
        const INDENT: &str = "\n                         ";
        let (style, state) = match self.state {
            State::Pass => (FINE, "pass"),
            State::Fail => (ERROR, "FAIL"),
            State::NotChecked => (WARNING, "not checked"),
            State::Manual => (WARNING, "by hand"),
        };
        let found = self.found.replace('\n', INDENT);
        let mut text = format!("{style}{state:<11}{style:#} {check:<12} {found}");
        for Figure { name, value, unit } in &self.figures {
            let digits = if *value < 10.0 { 2 } else { 0 };
            text += &format!("{INDENT}{name}: {value:.digits$} {unit}");
        }
        if let Some(remedy) = &self.remedy {
            let what = match self.state {
                State::Manual => "",
                _ => "remedy: ",
            };
            text += &format!("{INDENT}{what}{}", remedy.replace('\n', INDENT));
        }
        text + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_any_rank_is_the_outcome() {
        let figure = |value| Figure {
            name: "a".into(),
            value,
            unit: "b".into(),
        };
        let passes = |value| Some(Outcome::pass("fine").with_figures(vec![figure(value)]));
        let merged = Outcome::merged(vec![None, passes(1.0), passes(2.0)]);
        assert_eq!(merged.state, State::Pass);
        assert_eq!(merged.figures, [figure(1.0), figure(2.0)]);
        let fails = Some(Outcome::fail("wrong bytes", "look"));
        let merged = Outcome::merged(vec![passes(1.0), fails, passes(2.0)]);
        assert_eq!(merged.state, State::Fail);
        let text = merged.text("poison");
        assert!(
            text.contains("on rank 1: wrong bytes") && text.contains("remedy: look"),
            "{text}"
        );
        assert_eq!(Outcome::merged(vec![None]).state, State::NotChecked);
    }
}

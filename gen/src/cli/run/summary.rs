//! [`Summary`]: the numbers of runs.

use crate::cli::format::duration;
use crate::cli::output::Line;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

/// The numbers of runs, also as a JSON object.
#[derive(Serialize, JsonSchema)]
pub struct Summary {
    pub ok: bool,
    pub right: u64,
    /// Runs with wrong elements, or with other bits when repeated or in another batch.
    pub wrong: u64,
    /// Runs without results.
    pub failed: u64,
    pub not_run: u64,
    pub interrupted: bool,
    pub seconds: f64,
}

impl Line for Summary {
    const KIND: &'static str = "run-summary";
}

impl Summary {
    /// The numbers in one line.
    pub fn text(&self) -> String {
        let others = [
            (self.wrong, "wrong"),
            (self.failed, "failed"),
            (self.not_run, "not run"),
        ];
        let mut text = format!("{} right", self.right);
        for (count, what) in others.iter().filter(|(count, _)| *count > 0) {
            text += &format!(", {count} {what}");
        }
        let time = duration(Duration::from_secs_f64(self.seconds));
        let end = if self.interrupted {
            "; interrupted"
        } else {
            ""
        };
        format!("{text}, in {time}{end}\n")
    }
}

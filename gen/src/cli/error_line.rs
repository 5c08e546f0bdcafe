//! [`ErrorLine`]: an error as a JSON object.

use super::output::Line;
use schemars::JsonSchema;
use serde::Serialize;

/// An error as a JSON object. Errors in a configuration have a place and help, and errors of one kernel have its label.
#[derive(Default, Serialize, JsonSchema)]
pub struct ErrorLine<'a> {
    pub ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<&'a str>,
    pub reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<&'a str>,
}

impl Line for ErrorLine<'_> {
    const KIND: &'static str = "error";
}

//! [`with_causes`]: an error and its causes, as one text.

/// Joins the texts of `error` and of its causes. The result can be sent to other ranks.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

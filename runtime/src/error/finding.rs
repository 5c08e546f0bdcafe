//! [`Finding`]: a mistake of a kernel that the simulator found.

use std::fmt;

/// A mistake of a kernel that the simulator found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The kind of the mistake in a word or two, such as `race` or `deadlock`.
    pub kind: &'static str,
    /// A description in several lines: which threads, at which lines, and the conflicting access.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn findings_are_shown_in_full() {
        let finding = |text: &str| Finding {
            kind: "race",
            text: text.into(),
        };
        let findings = vec![finding("rank 0 wrote\nrank 1 read"), finding("again")];
        let text = Error::Simulation { findings }.to_string();
        assert_eq!(
            text,
            "the simulator found 2 mistakes:\nrace: rank 0 wrote\nrank 1 read\nrace: again"
        );
    }
}

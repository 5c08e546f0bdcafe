//! The list of mutants that no run can find, with the reasons.

use super::Mutant;

/// A mutant that need not be found.
#[derive(Clone, Debug)]
pub struct Exception {
    /// The mutant, in the form of [`Mutant`]'s `Display`.
    pub mutant: String,
    /// Why no run finds the mutant.
    pub reason: String,
}

/// Parses a list: lines that begin with `# ` give the reason for the mutants in the lines behind them.
///
/// # Panics
/// A mutant has no reason.
pub fn parse(list: &str) -> Vec<Exception> {
    let (mut found, mut reason, mut is_in_reason) = (Vec::new(), String::new(), false);
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.strip_prefix("# ") {
            Some(text) if is_in_reason => reason = format!("{reason} {text}"),
            Some(text) => reason = text.to_owned(),
            None => {
                assert!(!reason.is_empty(), "{line} has no reason");
                let (mutant, reason) = (line.to_owned(), reason.clone());
                found.push(Exception { mutant, reason });
            }
        }
        is_in_reason = line.starts_with("# ");
    }
    found
}

/// Returns whether a mutant is in the list.
pub fn contains(list: &[Exception], mutant: &Mutant) -> bool {
    let text = mutant.to_string();
    list.iter().any(|exception| exception.mutant == text)
}

/// Returns those entries that name no mutant.
pub fn without_mutant<'l>(list: &'l [Exception], mutants: &[Mutant]) -> Vec<&'l str> {
    let texts: Vec<String> = mutants.iter().map(Mutant::to_string).collect();
    let names = list.iter().map(|exception| exception.mutant.as_str());
    names
        .filter(|name| !texts.iter().any(|text| text == name))
        .collect()
}

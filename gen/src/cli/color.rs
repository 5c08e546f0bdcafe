//! The colours of `--color`.

use clap::{ColorChoice, ValueEnum};
use std::ffi::OsString;
use std::io;

/// The value of `--color` among arguments that are not parsed yet, for errors and help of the parser. A wrong value is the
/// default here, and an error later.
pub fn choice(args: &[OsString]) -> ColorChoice {
    let words: Vec<_> = args.iter().filter_map(|word| word.to_str()).collect();
    let after = words.iter().position(|word| *word == "--color");
    let joined = words.iter().find_map(|word| word.strip_prefix("--color="));
    let given = joined.or(after.and_then(|at| words.get(at + 1).copied()));
    let choice = given.and_then(|word| ColorChoice::from_str(word, false).ok());
    choice.unwrap_or(ColorChoice::Auto)
}

/// Makes `choice` the choice of this process.
pub fn choose(choice: ColorChoice) {
    let choice = match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
}

/// Whether standard error shows colours.
pub fn on_stderr() -> bool {
    anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_is_found_before_arguments_are_parsed() {
        let of = |words: &[&str]| choice(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of(&["m", "--color", "never", "plan"]), ColorChoice::Never);
        assert_eq!(of(&["m", "plan", "--color=always"]), ColorChoice::Always);
        for words in [&["m", "--color"][..], &["m", "--color=red"], &["m"]] {
            assert_eq!(of(words), ColorChoice::Auto);
        }
    }
}

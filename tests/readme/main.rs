//! README.md agrees with the code.

#[allow(dead_code, reason = "it is only compiled")]
#[rustfmt::skip] // lines of README.md may be longer
mod program;

use std::collections::BTreeSet;

const README: &str = include_str!("../../README.md");

/// The program in the README is one that is compiled here.
#[test]
fn the_program_compiles() {
    let file = include_str!("program.rs");
    let (_, program) = file.split_once("\n\n").expect("a heading, and the program");
    assert!(
        README.contains(&format!("```rust\n{program}```\n")),
        "README.md shows another program than tests/readme/program.rs"
    );
}

/// The variables that the crates read are those that they document, and those of the README.
#[test]
fn all_environment_variables_are_listed() {
    let sources = [
        include_str!("../../gen/compile/src/env.rs"),
        include_str!("../../runtime/src/env.rs"),
        include_str!("../../runtime/src/env/place.rs"),
    ];
    let of_all = |quote| sources.iter().flat_map(move |text| variables(text, quote));
    let documented: BTreeSet<_> = of_all('`').collect();
    let read: BTreeSet<_> = of_all('"').collect();
    let table = README
        .lines()
        .filter(|line| line.starts_with("| `MKERNEL_"));
    let listed: BTreeSet<_> = table.flat_map(|line| variables(line, '`')).collect();
    assert_eq!(listed, documented);
    assert_eq!(listed, read);
}

/// `MKERNEL_…` in `text`, between quotes.
fn variables(text: &str, quote: char) -> BTreeSet<&str> {
    let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    text.split(quote)
        .filter(|word| word.starts_with("MKERNEL_"))
        .filter(is_name)
        .collect()
}

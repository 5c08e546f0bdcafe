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

/// The variables that the crates document are those of the README.
#[test]
fn all_environment_variables_are_listed() {
    let documented = [
        include_str!("../../gen/compile/src/env.rs"),
        include_str!("../../runtime/src/env.rs"),
    ];
    let documented = documented.iter().flat_map(|text| variables(text)).collect();
    let table = README
        .lines()
        .filter(|line| line.starts_with("| `MKERNEL_"));
    let listed: BTreeSet<_> = table.flat_map(variables).collect();
    assert_eq!(listed, documented);
}

/// `MKERNEL_…` in `text`, in backquotes.
fn variables(text: &str) -> BTreeSet<&str> {
    text.split('`')
        .filter(|word| word.starts_with("MKERNEL_") && !word.contains(char::is_whitespace))
        .collect()
}

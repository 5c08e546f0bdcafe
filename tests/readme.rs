//! README.md agrees with the code.

use std::collections::BTreeSet;

const README: &str = include_str!("../README.md");

/// The program in the README is one that `macro_ui` compiles.
#[test]
fn the_program_compiles() {
    let file = include_str!("ui/pass/readme.rs");
    let program = file
        .split_once("\n\n")
        .and_then(|(_, rest)| rest.strip_suffix("\nfn main() {}\n"))
        .expect("a heading, the program, and an empty main");
    assert!(
        README.contains(&format!("```rust\n{program}```\n")),
        "README.md shows another program than tests/ui/pass/readme.rs"
    );
}

/// The variables that the crates document are those of the README.
#[test]
fn all_environment_variables_are_listed() {
    let documented = [
        include_str!("../gen/compile/src/env.rs"),
        include_str!("../runtime/src/env.rs"),
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

//! Tests that README.md agrees with the code: its programs compile, and its tables of options and of environment
//! variables are those of the code.

#[allow(dead_code, reason = "the program is only compiled")]
#[rustfmt::skip] // Lines of README.md may be longer.
mod program;
#[rustfmt::skip] // Lines of README.md may be longer.
mod graph;

use mkernel::half::bf16;
use mkernel::{Communicator, Simulation};
use std::collections::BTreeSet;
use std::error::Error;

const README: &str = include_str!("../../README.md");

/// The programs in the README are those of the files that are compiled here.
#[test]
fn the_programs_of_the_readme_are_compiled() {
    let files = [
        ("program.rs", include_str!("program.rs")),
        ("graph.rs", include_str!("graph.rs")),
    ];
    for (name, file) in files {
        let (_, program) = file.split_once("\n\n").expect("a heading, and the program");
        assert!(
            README.contains(&format!("```rust\n{program}```\n")),
            "README.md shows another program than tests/readme/{name}"
        );
    }
}

/// The graph of the README can be captured and replayed, also with slices that track events.
#[test]
fn the_graph_of_the_readme_is_replayed() -> Result<(), Box<dyn Error>> {
    let simulation = Simulation {
        ranks: 1,
        ..Simulation::default()
    };
    let ranks = Communicator::simulated(&simulation)?.remove(0);
    let (m, n, k) = (64, 64, 64);
    let layer = graph::Layer::prepare(&ranks, m)?;
    let (stream, other) = (ranks.context().new_stream()?, ranks.context().new_stream()?);
    let ones = vec![bf16::ONE; (m * k) as usize];
    let (x, w) = (other.clone_htod(&ones)?, other.clone_htod(&ones)?);
    let mut y = other.alloc_zeros::<bf16>((m * n) as usize)?;
    other.synchronize()?;
    let graph = graph::graph(&layer, &stream, (&x, &w, &mut y))?;
    drop(layer);
    graph.launch()?;
    ranks.synchronize(&stream)?;
    let y = other.clone_dtoh(&y)?;
    assert!(y.iter().all(|value| value.to_f32() == k as f32));
    Ok(())
}

/// Every option is in one of the tables, as it is declared in the code.
#[test]
fn the_tables_of_options_are_up_to_date() {
    assert!(
        mkernel_testing::readme::with_tables(README).as_deref() == Ok(README),
        "README.md is out of date: cargo run -p xtask -- readme"
    );
}

/// The crates document exactly the variables that they read, and the README lists the same ones.
#[test]
fn all_environment_variables_are_listed() {
    let sources = [
        include_str!("../../gen/compile/src/env.rs"),
        include_str!("../../runtime/src/env.rs"),
        include_str!("../../runtime/src/env/launcher.rs"),
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

/// Returns the names `MKERNEL_…` in `text` that are between quotes.
fn variables(text: &str, quote: char) -> BTreeSet<&str> {
    let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    text.split(quote)
        .filter(|word| word.starts_with("MKERNEL_"))
        .filter(is_name)
        .collect()
}

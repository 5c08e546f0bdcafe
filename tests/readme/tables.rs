//! The tables of options, of environment variables and of features, and the sections about errors, agree with the code.

use crate::{chapter, documents};
use mkernel_testing::documents::{root, with_tables};
use std::collections::BTreeSet;
use std::fs;

fn source(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect(path)
}

/// Every option is in one of the tables, as it is declared in the code.
#[test]
fn the_tables_of_options_are_up_to_date() {
    let documents = documents();
    assert!(
        with_tables(documents.clone()) == Ok(documents),
        "the tables are out of date: cargo run -p xtask -- readme"
    );
}

/// The crates document exactly the variables that they read, the book lists exactly these variables, and no document mentions other
/// variables.
#[test]
fn all_environment_variables_are_listed() {
    let paths = [
        "gen/compile/src/env.rs",
        "runtime/src/env.rs",
        "runtime/src/env/launcher.rs",
        "runtime/src/env/rendezvous_point.rs",
        "runtime/src/fabric/nic_settings.rs",
    ];
    let sources = paths.map(source);
    let of_all = |quote| sources.iter().flat_map(move |text| quoted(text, quote));
    let documented: BTreeSet<_> = of_all('`').collect();
    let read: BTreeSet<_> = of_all('"').collect();
    let table = chapter("environment.md").text;
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let listed: BTreeSet<_> = rows.flat_map(|row| quoted(row, '`')).collect();
    assert_eq!(listed, documented);
    assert_eq!(listed, read);
    for document in documents() {
        let mentioned = variables(&document.text);
        let unknown: Vec<_> = mentioned.difference(&listed).collect();
        assert!(
            unknown.is_empty(),
            "{}: {unknown:?}",
            document.path.display()
        );
    }
}

/// Returns the names `MKERNEL_…` in `text` that are between quotes.
fn quoted(text: &str, quote: char) -> BTreeSet<&str> {
    let words = text.split(quote);
    words
        .filter(|word| word.starts_with("MKERNEL_") && word.chars().all(is_of_name))
        .collect()
}

/// Returns the names `MKERNEL_…` in `text`.
fn variables(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c| !is_of_name(c));
    words.filter(|word| word.starts_with("MKERNEL_")).collect()
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_uppercase() || c == '_'
}

/// The chapter for new users lists the features of `mkernel`, and which of them are on by default.
#[test]
fn all_features_are_listed() {
    let manifest: toml::Table = source("runtime/Cargo.toml").parse().expect("TOML");
    let features = manifest["features"].as_table().expect("a table");
    let default = features["default"].as_array().expect("a list");
    let expected: BTreeSet<String> = features
        .keys()
        .filter(|name| *name != "default")
        .map(
            |name| match default.iter().any(|on| on.as_str() == Some(name)) {
                true => format!("| `{name}` | yes |"),
                false => format!("| `{name}` | no |"),
            },
        )
        .collect();
    let text = chapter("getting-started.md").text;
    let (_, table) = text.split_once("| feature |").expect("a table of features");
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let listed = rows.map(|row| row.split('|').take(3).collect::<Vec<_>>().join("|") + "|");
    assert_eq!(listed.collect::<BTreeSet<_>>(), expected);
}

/// The chapter about errors has a section for each kind, and mentions each variant of `Error`.
#[test]
fn all_errors_are_explained() {
    let text = chapter("errors.md").text;
    for kind in mkernel::ErrorKind::ALL {
        let heading = format!("\n## {kind:?}\n");
        assert!(text.contains(&heading), "errors.md lacks {heading:?}");
    }
    let file = syn::parse_file(&source("runtime/src/error.rs")).expect("Rust");
    let variants = file.items.iter().find_map(|item| match item {
        syn::Item::Enum(error) if error.ident == "Error" => Some(&error.variants),
        _ => None,
    });
    for variant in variants.expect("the enum Error") {
        let name = format!("`Error::{}`", variant.ident);
        assert!(text.contains(&name), "errors.md lacks {name}");
    }
}

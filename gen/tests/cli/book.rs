//! The commands in README.md and in the book exist, with all of their flags, and print the text that the book quotes.

use super::{run, stdout};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn documents() -> Vec<PathBuf> {
    let root = root();
    let book = fs::read_dir(root.join("docs/book/src")).expect("the book");
    let mut paths: Vec<_> = book.map(|entry| entry.expect("a file").path()).collect();
    paths.push(root.join("README.md"));
    paths
}

/// Returns the arguments of each call of `mkernel-gen` in the blocks of shell commands of a text.
fn calls(text: &str) -> Vec<Vec<&str>> {
    let blocks = text.split("```sh\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap_or("").lines());
    lines.filter_map(arguments).collect()
}

/// Returns the words behind `mkernel-gen`, or behind the `--` of `cargo run -p mkernel-gen`.
fn arguments(line: &str) -> Option<Vec<&str>> {
    let (before, after) = line.split_once("mkernel-gen ")?;
    let after = match before.contains("cargo run") {
        true => after.strip_prefix("-- ")?,
        false => after,
    };
    let end = after.find([';', '&', '|', '#']).unwrap_or(after.len());
    (!before.contains("cargo build")).then(|| after[..end].split_whitespace().collect())
}

#[test]
fn commands_of_the_documents_exist() {
    let mut help: BTreeMap<&str, String> = BTreeMap::new();
    let texts: Vec<_> = documents()
        .into_iter()
        .map(|path| (fs::read_to_string(&path).expect("a document"), path))
        .collect();
    let mut count = 0;
    for (text, path) in &texts {
        for call in calls(text) {
            let (command, flags) = call.split_first().expect("a subcommand");
            let help = help
                .entry(command)
                .or_insert_with(|| stdout(&run(&["help", command])).to_owned());
            let place = path.display();
            assert!(!help.is_empty(), "{place}: there is no command {command}");
            for file in flags.iter().filter(|word| word.starts_with("examples/")) {
                assert!(root().join(file).exists(), "{place}: {file}");
            }
            for flag in flags.iter().filter(|word| word.starts_with("--")) {
                let listed = help
                    .split_whitespace()
                    .any(|word| word.split(['=', '[', ',']).next() == Some(flag));
                assert!(listed, "{place}: {command} has no flag {flag}");
                count += 1;
            }
        }
    }
    assert!(count > 20, "only {count} flags were found");
}

/// Returns the words of a line, between which a table may have any number of spaces.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// A block of text behind a block with one command quotes what the command prints.
#[test]
fn plans_in_the_documents_are_those_of_the_command() {
    let mut count = 0;
    for path in documents() {
        let text = fs::read_to_string(&path).expect("a document");
        for block in text.split("```sh\n").skip(1) {
            let Some((command, after)) = block.split_once("```\n\n```text\n") else {
                continue;
            };
            let (Some(call), None) = (arguments(command), command.find("```")) else {
                continue;
            };
            let output = run(&call);
            let printed: Vec<_> = stdout(&output).lines().map(words).collect();
            for line in after.split("```").next().unwrap_or("").lines() {
                let place = path.display();
                assert!(
                    printed.contains(&words(line)),
                    "{place}: `{}` does not print: {line}\n{}",
                    command.trim(),
                    stdout(&output)
                );
                count += 1;
            }
        }
    }
    assert!(count >= 9, "only {count} lines were compared");
}

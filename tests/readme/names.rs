//! Documents name files that exist, and CONTRIBUTING.md names each test.

use crate::links::all_documents;
use mkernel_testing::documents::{Document, root};
use std::collections::BTreeSet;
use std::fs;

/// The folders and files at the root of the repository with which a path begins.
const ROOTS: [&str; 10] = [
    ".ci/",
    ".github/",
    "benches/",
    "docs/",
    "examples/",
    "gen/",
    "mkernel-macros/",
    "runtime/",
    "templates/",
    "tests/",
];

#[test]
fn files_in_documents_exist() {
    let mut absent = Vec::new();
    for document in all_documents() {
        let own_folder = root().join(document.path.with_file_name(""));
        for path in paths(&document.text) {
            if !root().join(path).exists() && !own_folder.join(path).exists() {
                absent.push(format!("{}: {path}", document.path.display()));
            }
        }
    }
    assert!(absent.is_empty(), "absent files:\n{}", absent.join("\n"));
}

#[test]
fn contributing_names_each_test() {
    let contributing = Document::read("CONTRIBUTING.md").expect("a document");
    let named: BTreeSet<_> = code_words(&contributing.text).collect();
    let mut absent = Vec::new();
    for entry in fs::read_dir(root().join("tests")).expect("the tests") {
        let path = entry.expect("a file").path();
        let is_test = path.is_file() || path.join("main.rs").exists();
        let name = path.file_stem().expect("a name").to_string_lossy();
        if is_test && !named.contains(&*name) {
            absent.push(name.into_owned());
        }
    }
    assert!(absent.is_empty(), "tests without a row: {absent:?}");
}

/// Returns the paths from the root of the repository that are set as code, without patterns.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    code_words(text).filter(|word| {
        ROOTS.iter().any(|root| word.starts_with(root)) && !word.contains([' ', '<', '*', '{'])
    })
}

/// Returns the inline code of a text.
fn code_words(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|part| part.split('`').skip(1).step_by(2))
}

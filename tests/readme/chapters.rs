//! The book has all of its chapters, and its programs are tested.

use crate::{chapter, documents};
use mkernel_testing::documents::{Document, root};
use std::collections::BTreeSet;

/// SUMMARY.md lists each chapter once, and mkernel-testing compiles the programs of each chapter.
#[test]
fn all_chapters_are_listed_and_tested() {
    let summary = chapter("SUMMARY.md").text;
    let tested = Document::read("tests/testing/src/book.rs")
        .expect("a file")
        .text;
    for document in documents() {
        let path = document.path.to_str().expect("UTF-8");
        let name = document.path.file_name().and_then(|name| name.to_str());
        let name = name.expect("UTF-8");
        if name == "SUMMARY.md" {
            continue;
        }
        assert!(
            tested.contains(&format!("{path:?}")),
            "book.rs lacks {path}"
        );
        if path != "README.md" {
            let link = format!("]({name})");
            assert_eq!(summary.matches(&link).count(), 1, "SUMMARY.md: {name}");
        }
    }
}

/// Every block of code names its language, and every Rust program is at least compiled. `runtime/python/tests/test_book.py`
/// covers programs in Python.
#[test]
fn all_programs_are_tested() {
    let known = BTreeSet::from([
        "python",
        "python,no_run",
        "rust",
        "rust,no_run",
        "sh",
        "text",
        "toml",
        "yaml",
    ]);
    for document in documents() {
        let fences = document
            .text
            .lines()
            .filter(|line| line.trim_start().starts_with("```"));
        for language in fences
            .step_by(2)
            .map(|line| line.trim_start().trim_matches('`'))
        {
            assert!(
                known.contains(language),
                "{}: {language:?}",
                document.path.display()
            );
        }
    }
}

/// The programs that commands run exist.
#[test]
fn all_examples_exist() {
    for document in documents() {
        for line in document.text.split("--example ").skip(1) {
            let name: String = line
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            let path = format!("examples/{name}.rs");
            assert!(
                root().join(&path).exists(),
                "{}: {path}",
                document.path.display()
            );
        }
    }
}

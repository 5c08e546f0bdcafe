//! Links between documents lead to files of the repository and to their headings.

use crate::documents;
use mkernel_testing::documents::{Document, in_folder, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Returns all documents of the repository whose links are checked.
pub fn all_documents() -> Vec<Document> {
    let others = [
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "GLOSSARY.md",
        "SECURITY.md",
        "benches/README.md",
        "runtime/simulator/README.md",
    ];
    let mut all = documents();
    all.extend(others.map(|path| Document::read(path).expect(path)));
    for folder in ["docs", "docs/decisions"] {
        all.extend(in_folder(folder).expect(folder));
    }
    all
}

#[test]
fn all_links_lead_somewhere() {
    let all = all_documents();
    let mut broken = Vec::new();
    for document in &all {
        for link in links(&document.text) {
            if !link.contains("://") && !leads_somewhere(&all, document, link) {
                broken.push(format!("{}: {link}", document.path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

/// The documentation of the crate names chapters by their paths.
#[test]
fn the_chapters_in_the_front_page_exist() {
    let page = Document::read("runtime/src/lib.rs")
        .expect("the front page")
        .text;
    let paths: Vec<_> = page
        .split('`')
        .filter(|word| word.starts_with("docs/"))
        .collect();
    assert!(!paths.is_empty(), "the front page names no chapter");
    for path in paths {
        assert!(root().join(path).exists(), "runtime/src/lib.rs: {path}");
    }
}

/// Comments of constants name their measurements by `docs/performance.md#section`. Each named section exists, and each section of
/// constants is named.
#[test]
fn the_measurements_of_constants_exist() {
    let page = "docs/performance.md";
    let notes = Document::read(page).expect(page).text;
    let sections: BTreeSet<_> = anchors(&notes).collect();
    let (_, of_constants) = notes
        .split_once("\n## Constants of plans\n")
        .expect("the section of constants");
    let of_constants: BTreeSet<_> = anchors(of_constants).collect();
    let mut named = BTreeSet::new();
    for folder in ["gen", "templates", "runtime"] {
        for file in sources(&root().join(folder)) {
            let text = fs::read_to_string(&file).expect("a source");
            for rest in text.split("`docs/performance.md#").skip(1) {
                let section = rest.split('`').next().unwrap_or_default().to_owned();
                let is_known = sections.contains(&section);
                assert!(is_known, "{}: {page}#{section}", file.display());
                named.insert(section);
            }
        }
    }
    let unnamed: Vec<_> = of_constants.difference(&named).collect();
    assert!(unnamed.is_empty(), "no constant names {unnamed:?}");
}

/// Returns the files of Rust and of device code below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a readable folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let found = paths.flat_map(|path| match path.is_dir() {
        true => sources(&path),
        false => vec![path],
    });
    let is_source = |path: &PathBuf| {
        path.extension()
            .is_some_and(|end| end == "rs" || end == "cuh")
    };
    found.filter(is_source).collect()
}

/// Returns the targets of the links in a text, outside of blocks of code.
fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let starts = prose.flat_map(|part| part.split("](").skip(1));
    starts
        .filter_map(|rest| Some(rest.split_once(')')?.0))
        .collect()
}

fn leads_somewhere(all: &[Document], from: &Document, link: &str) -> bool {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let path = match file {
        "" => from.path.clone(),
        file => resolved(&from.path.with_file_name("").join(file)),
    };
    if !root().join(&path).exists() {
        return false;
    }
    let target = all.iter().find(|document| document.path == path);
    heading.is_empty() || target.is_some_and(|target| anchors(&target.text).any(|a| a == heading))
}

/// Returns a path without `..`.
fn resolved(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                resolved.pop();
            }
            other => resolved.push(other),
        }
    }
    resolved
}

/// Returns the anchors of the headings in a text, as GitHub and mdBook make them.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let prose = text.split("```").step_by(2);
    let headings = prose
        .flat_map(str::lines)
        .filter(|line| line.starts_with('#'));
    headings.map(|heading| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

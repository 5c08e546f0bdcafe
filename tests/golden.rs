//! Tests of the rendered kernels of the golden configurations in `tests/configs`.
//!
//! Each kernel is compared with a snapshot, so that reviewers see changes of kernels in the diff. The tests also check
//! the style of the kernels. The test `coverage` checks that the configurations cover all code that can be rendered.
//!
//! To accept a change, run `INSTA_UPDATE=always cargo test --test golden` and read `git diff tests/snapshots`.

use mkernel_compile::render;
use mkernel_testing::golden::Golden;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The largest number of columns of a line. Only the line with the kernel's symbol may be longer.
const MAX_COLUMNS: usize = 140;

#[test]
fn kernels_match_their_snapshots() {
    insta::glob!("configs/*.toml", |path| {
        let golden = Golden::read(path);
        insta::with_settings!({
            prepend_module_to_snapshot => false,
            snapshot_suffix => "",
            omit_expression => true,
        }, {
            insta::assert_snapshot!(golden.name, golden.source.text);
        });
    });
}

#[test]
fn every_snapshot_has_a_configuration() {
    let names: BTreeSet<_> = Golden::all().into_iter().map(|g| g.name).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().expect("a name").to_string_lossy();
        // A snapshot that nobody has accepted yet is in the file `NAME.snap.new`.
        let name = stem.trim_end_matches(".snap");
        assert!(
            names.contains(name),
            "{} has no configuration",
            path.display()
        );
    }
}

#[test]
fn rendered_text_reads_like_hand_written_code() {
    let faults: Vec<String> = Golden::all().iter().flat_map(text_faults).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// Returns the places where the text of a kernel does not read like hand-written code.
fn text_faults(golden: &Golden) -> Vec<String> {
    let (id, text) = (&golden.source.id, &golden.source.text);
    let mut faults = Vec::new();
    let mut fault = |line: usize, what: String| {
        faults.push(format!("{}:{line}: {what}", golden.name));
    };
    for (number, line) in (1..).zip(text.lines()) {
        let columns = line.chars().count();
        if columns > MAX_COLUMNS && !line.contains(id.as_str()) {
            fault(number, format!("{columns} columns"));
        }
        if line.ends_with([' ', '\t']) || line.contains('\t') {
            fault(number, "a trailing blank or a tab".into());
        }
        for left in ["{{", "{%", "{#", "#if", "asm(", "asm volatile"] {
            if line.contains(left) {
                fault(number, format!("`{left}` in `{line}`"));
            }
        }
    }
    if text.matches("__global__").count() != 1 {
        fault(0, "not exactly one __global__".into());
    }
    if !text.contains(&format!(" {id}(const __grid_constant__ Args args) {{\n")) {
        fault(0, format!("the kernel is not called {id}"));
    }
    if *id != golden.plan.id || !text.starts_with(&format!("// {id}\n")) {
        fault(0, format!("the banner does not begin with {id}"));
    }
    if text.contains("\n\n\n") || !text.ends_with("}\n") {
        fault(0, "blank lines in a row, or at the end".into());
    }
    faults
}

#[test]
fn rendering_is_repeatable() {
    for golden in Golden::all() {
        let again = render(&golden.plan).expect("rendered before");
        assert_eq!(golden.source, again, "{}", golden.name);
    }
}

#[test]
fn each_kernel_has_its_own_symbol() {
    let goldens = Golden::all();
    let ids: BTreeSet<_> = goldens.iter().map(|g| &g.source.id).collect();
    assert_eq!(ids.len(), goldens.len());
}

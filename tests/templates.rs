//! Tests of the rules for templates: device code is plain C++ in headers, and Tera only assembles kernels from headers.

use mkernel_spec::abi::codes_header;
use mkernel_testing::golden::Golden;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The largest number of lines of an emitted kernel for each of its buckets, without the headers.
const MAX_LINES: usize = 240;
/// The most lines of a snapshot on average.
const MEAN_SNAPSHOT_LINES: usize = 147;

/// Names of operators that shared code must not mention. `combine` is missing, since it is also an English word.
const OPERATORS: [&str; 7] = [
    "ag_gemm",
    "gemm_rs",
    "gemm_ar",
    "ring_attention",
    "dispatch_gemm",
    "moe_layer",
    "gemm_combine",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("templates")
}

/// Returns all files below a folder that have this extension, with their text.
fn files(folder: &Path, ending: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|e| e == ending) {
            let text = fs::read_to_string(&path).expect("UTF-8");
            found.push((path, text));
        }
    }
    found
}

/// Returns the lines of a template that compute what C++ should compute.
fn template_faults(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut fault =
            |what: &str| faults.push(format!("{name}:{number}: {what}: {}", line.trim()));
        let tags = line.matches("{%").count();
        // Blocks hold the additions of an operator, without conditions.
        let is_block =
            line.contains("{% block") || line.contains("block %}") || line.contains("{% extends");
        if tags > 0
            && !is_block
            && !(line.trim().starts_with("{%") && line.trim().ends_with("%}") && tags == 1)
        {
            fault("a logic tag inside a line");
        }
        let condition = line.split("if ").nth(1).filter(|_| line.contains("{%"));
        if condition
            .is_some_and(|c| c.contains(['<', '>']) || c.contains(|x: char| x.is_ascii_digit()))
        {
            fault("a condition on a number");
        }
        for word in ["{% set", "{%- set", "{% macro", "{%- macro"] {
            if line.contains(word) {
                fault("a variable");
            }
        }
    }
    faults
}

#[test]
fn tera_only_assembles() {
    let root = root();
    let faults: Vec<String> = files(&root, "tera")
        .iter()
        .flat_map(|(path, text)| {
            let name = path
                .strip_prefix(&root)
                .expect("a path below the root")
                .to_string_lossy();
            template_faults(&name, text)
        })
        .collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn lines_that_break_a_rule_are_found() {
    for (line, what) in [
        (
            "  a = {% if b %}1{% else %}2{% endif %};",
            "a logic tag inside a line",
        ),
        ("{%- if nodes > 1 %}", "a condition on a number"),
        ("{% set leaves = a or b %}", "a variable"),
    ] {
        let faults = template_faults("t", line);
        assert!(
            faults.iter().any(|fault| fault.contains(what)),
            "{line}: {faults:?}"
        );
    }
    for line in [
        "  u32 {{ name }} = {{ value }};",
        "{%- for x in list %}",
        "{% block policies -%}",
    ] {
        assert_eq!(template_faults("t", line), Vec::<String>::new());
    }
}

/// Headers contain no tags and no read-only loads, and shared code names no operator.
#[test]
fn headers_are_plain_cpp() {
    let mut faults = Vec::new();
    let root = root();
    let headers = files(&root, "cuh");
    let shared = ["kernel.cu.tera", "buckets.cu.tera"].map(|name| {
        let path = root.join(name);
        let text = fs::read_to_string(&path).expect("UTF-8");
        (path, text)
    });
    for (path, text) in headers.iter().chain(&shared) {
        let name = path
            .strip_prefix(&root)
            .expect("a path below the root")
            .to_string_lossy();
        for (number, line) in (1..).zip(text.lines()) {
            let is_header = name.ends_with(".cuh");
            if is_header
                && ["{% ", "{%-", "{#", "%}"]
                    .iter()
                    .any(|tag| line.contains(tag))
            {
                faults.push(format!("{name}:{number}: a tag: {line}"));
            }
            // Operands may also be results, and the previous grid may still write them when a grid starts.
            if line.contains("\"ld.global.nc") {
                faults.push(format!("{name}:{number}: a load of read-only data: {line}"));
            }
            if OPERATORS.iter().any(|op| line.contains(op)) {
                faults.push(format!("{name}:{number}: an operator's name: {line}"));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn emitted_kernels_are_short() {
    let mut faults = Vec::new();
    for golden in Golden::all() {
        let lines = golden.source.text.lines().count();
        if lines > MAX_LINES * golden.plan.bodies.len() {
            faults.push(format!("{} has {lines} lines", golden.name));
        }
    }
    let snapshots = files(&root().join("../tests/snapshots"), "snap");
    let lines = |(_, text): &(PathBuf, String)| text.lines().count();
    let all: usize = snapshots.iter().map(lines).sum();
    if all > MEAN_SNAPSHOT_LINES * snapshots.len() {
        faults.push(format!("{all} lines of {} snapshots", snapshots.len()));
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// Appends to `all` the headers that a text includes, directly and through other headers.
fn included(text: &str, seen: &mut BTreeSet<String>, all: &mut String) {
    for line in text.lines() {
        let name = line
            .strip_prefix("#include <")
            .and_then(|rest| rest.strip_suffix('>'));
        let Some(name) = name.filter(|name| seen.insert((*name).to_owned())) else {
            continue;
        };
        let path = root().join("device").join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        all.push_str(&text);
        included(&text, seen, all);
    }
}

/// Every constant of a kernel's `Config` is used. NVRTC does not warn of unused constants in a struct.
#[test]
fn every_constant_of_a_kernel_is_used() {
    let mut faults = Vec::new();
    for golden in Golden::all() {
        let text = &golden.source.text;
        let mut used = text.clone();
        included(text, &mut BTreeSet::new(), &mut used);
        for line in text.lines() {
            let Some(declaration) = line.trim().strip_prefix("static constexpr ") else {
                continue;
            };
            let name = declaration.split(' ').nth(1).expect("a name");
            if !used.contains(&format!("Config::{name}")) {
                faults.push(format!("{}: {name}", golden.name));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// Beginnings of notes that continue the line above.
const CONTINUATIONS: [&str; 9] = [
    "of ", "that ", "to ", "in ", "on ", "for ", "before ", "under ", "over ",
];

/// Whether a note describes its number without the line above.
fn stands_alone(note: &str) -> bool {
    let leans = [
        " of them",
        " of each",
        " of these",
        " of those",
        "there are",
        " as many",
    ];
    !CONTINUATIONS.iter().any(|word| note.starts_with(word))
        && !leans.iter().any(|words| format!(" {note}").contains(words))
}

#[test]
fn notes_of_constants_stand_alone() {
    for note in [
        "that there are",
        "of them, computed by one CTA each",
        "rows, two of each",
    ] {
        assert!(!stands_alone(note), "{note}");
    }
    let mut faults = BTreeSet::new();
    for golden in Golden::all() {
        for line in golden
            .source
            .text
            .lines()
            .filter(|line| line.contains("static constexpr"))
        {
            let note = line.split_once("  // ").map_or("", |(_, note)| note);
            if !stands_alone(note) {
                faults.insert(line.trim().to_owned());
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Each policy of a kernel is printed with the header that defines it.
#[test]
fn headers_of_policies_define_them() {
    let mut faults = BTreeSet::new();
    for golden in Golden::all() {
        let lines = golden.source.text.lines();
        for line in lines.filter(|line| line.starts_with("using ") && line.contains(" = mk::")) {
            let policy = line
                .split(" = ")
                .nth(1)
                .and_then(|policy| policy.split(['<', ';']).next());
            let name = policy
                .and_then(|policy| policy.rsplit("::").next())
                .unwrap_or_default();
            if ["RoleTable", "Bucket", "Buckets"].contains(&name) {
                continue;
            }
            let header = line
                .split_once("  // mk/")
                .and_then(|(_, header)| header.split(':').next());
            let path = root().join("device/mk").join(header.unwrap_or_default());
            let text = fs::read_to_string(path).unwrap_or_default();
            let defines = |how: &str| {
                text.lines().any(|line| {
                    line.starts_with(&format!("{how} {name} ")) || line == format!("{how} {name};")
                })
            };
            if !["struct", "using"].into_iter().any(defines) {
                faults.insert(line.to_owned());
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// The generated header of roles and waits agrees with the host's declarations.
#[test]
fn generated_headers_are_up_to_date() {
    let path = root().join("device/mk/codes.cuh");
    let text = fs::read_to_string(&path).expect("UTF-8");
    assert!(
        text == codes_header(),
        "{} is out of date: cargo run -p xtask -- headers",
        path.display()
    );
}

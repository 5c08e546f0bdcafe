//! What `mkernel-gen doctor` says about healthy and broken machines.

use super::*;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

const CHECKS: [&str; 14] = [
    "nvrtc",
    "c++",
    "simulator",
    "cache",
    "bundles",
    "tuned",
    "driver",
    "gpu links",
    "transports",
    "nics",
    "gpu memory",
    "acs",
    "iommu",
    "memlock",
];

/// The lines of `doctor --json` by their checks, and the exit code.
fn doctor(variables: &[(&str, &str)]) -> (BTreeMap<String, Value>, i32) {
    let cache = TempDir::new().expect("temporary folder");
    let mut command = mkernel_gen(cache.path());
    let command = command
        .args(["doctor", "--json"])
        .envs(variables.iter().copied());
    let output = command.output().expect("mkernel-gen starts");
    let lines = json_lines(&output).into_iter();
    let lines = lines.filter(|line| line["check"].is_string());
    let by_check = lines.map(|line| {
        (
            line["check"].as_str().expect("a text").to_owned(),
            line.clone(),
        )
    });
    (by_check.collect(), code(&output))
}

/// Asserts a state, and returns the finding with its remedy.
fn text_of(found: &BTreeMap<String, Value>, check: &str, state: &str) -> String {
    let line = &found[check];
    assert_eq!(line["state"], state, "{line}");
    assert_eq!(line["remedy"].is_null(), state == "ok", "{line}");
    format!("{} {}", line["found"], line["remedy"])
}

#[test]
fn each_part_of_the_machine_is_examined() {
    let (found, _) = doctor(&[]);
    for check in CHECKS {
        let line = &found[check];
        assert_eq!(line["remedy"].is_null(), line["state"] == "ok", "{line}");
    }
    text_of(&found, "c++", "ok");
    text_of(&found, "cache", "ok");
    let cxx = run(&["doctor"]);
    expect_parts(stdout(&cxx), &["\nok     c++         "]);
}

#[test]
fn faults_have_reasons_and_remedies() {
    let (found, code) = doctor(&[
        ("MKERNEL_NVRTC", "/nowhere"),
        ("MKERNEL_BUNDLE", "/nowhere/bundle"),
        ("MKERNEL_TUNED", "/nowhere/tuned.toml"),
        ("MKERNEL_CXX", "/nowhere/c++"),
        ("MKERNEL_CACHE_DIR", "/proc/nowhere"),
    ]);
    assert_eq!(code, 4);
    for (check, state, part) in [
        (
            "nvrtc",
            "fault",
            "mkernel-gen fetch-nvrtc && unset MKERNEL_NVRTC",
        ),
        ("bundles", "fault", "/nowhere/bundle"),
        ("bundles", "fault", "unset MKERNEL_BUNDLE"),
        ("tuned", "fault", "/nowhere/tuned.toml"),
        ("tuned", "fault", "unset MKERNEL_TUNED"),
        ("c++", "note", "No such file"),
        ("c++", "note", "unset MKERNEL_CXX"),
        ("cache", "fault", "MKERNEL_CACHE_DIR"),
    ] {
        let text = text_of(&found, check, state);
        assert!(text.contains(part), "{text}");
    }
    let (found, _) = doctor(&[("MKERNEL_CACHE", "0")]);
    assert!(text_of(&found, "cache", "note").contains("unset MKERNEL_CACHE"));
}

#[test]
fn compilers_that_fail_or_hang_are_explained() {
    let dir = TempDir::new().expect("temporary folder");
    let compiler = |name: &str, script: &str| {
        let path = file(&dir, name, &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
        path.display().to_string()
    };
    let started = Instant::now();
    let (found, _) = doctor(&[("MKERNEL_CXX", &compiler("hangs", "sleep 100"))]);
    let text = text_of(&found, "c++", "note");
    assert!(text.contains("did not end within 10s"), "{text}");
    assert!(started.elapsed() < Duration::from_secs(60));
    let (found, _) = doctor(&[("MKERNEL_CXX", &compiler("fails", "exit 1"))]);
    let text = text_of(&found, "c++", "note");
    assert!(text.contains("it failed without a message"), "{text}");
}

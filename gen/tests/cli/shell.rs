//! Manners in a shell: help, completions, manual pages, colours and quiet.

use super::*;
use std::fs;

const COMMANDS: [&str; 21] = [
    "check",
    "plan",
    "simulate",
    "render",
    "build",
    "run",
    "bench",
    "trace",
    "tune",
    "launch",
    "fabric-test",
    "nic-check",
    "bundle",
    "list",
    "clean",
    "fetch-nvrtc",
    "doctor",
    "topology",
    "completions",
    "man",
    "schema",
];

#[test]
fn completions_know_all_commands_and_bash_reads_them() {
    let dir = TempDir::new().expect("temporary folder");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = succeeds(&["completions", shell]);
        for word in COMMANDS.iter().chain(&["seeds", "tile-m"]) {
            assert!(stdout(&output).contains(word), "{shell} lacks {word}");
        }
    }
    let script = run(&["completions", "bash"]);
    let path = file(&dir, "completions", stdout(&script))
        .display()
        .to_string();
    let complete = format!(
        "source {path}; COMP_WORDS=(mkernel-gen run --fail); COMP_CWORD=2; _mkernel-gen mkernel-gen --fail run; echo \"${{COMPREPLY[@]}}\""
    );
    let output = Command::new("bash").args(["-c", &complete]).output();
    let output = output.expect("bash");
    assert_eq!(stdout(&output), "--fail-fast\n", "{}", stderr(&output));
    assert_eq!(code(&run(&["completions", "cmd"])), 2);
}

#[test]
fn each_command_has_a_manual_page() {
    let dir = TempDir::new().expect("temporary folder");
    let out = dir.path().join("man1");
    let output = succeeds(&["man", "--json", "--out", out.to_str().expect("UTF-8")]);
    // The commands of `bundle` have pages too.
    assert_eq!(json_lines(&output).len(), 1 + COMMANDS.len() + 4);
    for command in COMMANDS {
        let page = fs::read_to_string(out.join(format!("mkernel-gen-{command}.1")));
        let page = page.expect("a page").replace('\\', "");
        assert!(
            page.contains(&format!("mkernel-gen {command}")),
            "{command}: {page}"
        );
    }
    let output = run(&["man", "--out", "/proc/nowhere"]);
    assert_eq!(code(&output), 4);
    expect_parts(stderr(&output), &["cannot write /proc/nowhere"]);
}

#[test]
fn options_are_grouped_by_operator_with_their_defaults() {
    let output = run(&["plan", "--help"]);
    let text = stdout(&output);
    let group = |heading: &str| {
        let (_, after) = text.split_once(&format!("\n{heading}:\n")).expect(heading);
        after
            .split("\n\nOptions of ")
            .next()
            .unwrap_or(after)
            .to_owned()
    };
    assert!(group("Options of ring_attention").contains("--kv-heads"));
    let gemm = group("Options of ag_gemm, gemm_rs, gemm_ar, gemm");
    assert!(
        gemm.contains("--activation") && !gemm.contains("--kv-heads"),
        "{gemm}"
    );
    expect_parts(text, &["as a linear layer keeps its weight. Default: kn."]);
}

#[test]
fn colours_are_a_choice() {
    let colored = |args: &[&str], no_color: &str| {
        let cache = TempDir::new().expect("temporary folder");
        let mut command = mkernel_gen(cache.path());
        let output = command.args(args).env("NO_COLOR", no_color).output();
        let output = output.expect("mkernel-gen starts");
        stderr(&output).contains("\u{1b}[")
    };
    // An error of the parser, and an error of a command.
    for wrong in [&["plan", "--banana"][..], &["plan", "/nowhere.toml"]] {
        let with = |choice: &'static str| [&["--color", choice][..], wrong].concat();
        assert!(colored(&with("always"), "1"), "{wrong:?}");
        assert!(!colored(&with("never"), ""), "{wrong:?}");
        assert!(!colored(&with("auto"), ""), "{wrong:?}");
        assert!(!colored(wrong, "1"), "{wrong:?}");
    }
    assert_eq!(code(&run(&["--color", "blue", "doctor"])), 2);
}

/// Flags that do not fit together show the usage of their command, as other mistakes do.
#[test]
fn wrong_usage_shows_the_usage_of_the_command() {
    for args in [
        &["run", "--device=gpu", "--sms=4"][..],
        &["run", "--seed=1", "--seeds=0..2"],
    ] {
        let output = run(args);
        assert_eq!(code(&output), 2);
        expect_parts(stderr(&output), &["Usage: mkernel-gen run "]);
    }
}

#[test]
fn quiet_leaves_errors() {
    let tiny = [
        "--device=auto",
        "--ranks=1",
        "--m=64",
        "--n=64",
        "--k=64",
        "--sms=2",
        "--calls=1",
    ];
    let loud = run(&[&["run"][..], &tiny].concat());
    let quiet = run(&[&["run", "--quiet"][..], &tiny].concat());
    expect_parts(stderr(&loud), &["so GPUs are simulated"]);
    assert_eq!((code(&quiet), stderr(&quiet)), (0, ""));
    let output = run(&["check", "-q", "/nowhere.toml"]);
    expect_parts(stderr(&output), &["cannot read /nowhere.toml"]);
}

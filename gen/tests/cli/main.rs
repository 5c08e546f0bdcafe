//! The program `mkernel-gen`, run as users and scripts run it.

mod bench;
mod book;
mod buckets;
mod build;
mod bundle;
mod doctor;
mod drawing;
mod drawn_order;
mod dump;
mod fabric_test;
mod from_env;
mod kernels;
mod launch;
mod nic_check;
mod one_rank;
mod record;
mod references;
mod run;
mod run_several;
mod schema;
mod shell;
mod simulate;
mod sources;
mod topology;
mod trace;
mod trace_on_gpus;
mod tune;

use serde_json::Value;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const KERNEL: [&str; 9] = [
    "--op=ag_gemm",
    "--world=8",
    "--m=8192",
    "--n=1024",
    "--k=8192",
    "--tile-m=128",
    "--tile-n=128",
    "--transfer=sm_push",
    "--comm-ctas=8",
];

fn mkernel_gen(cache: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mkernel-gen"));
    command.env("MKERNEL_CACHE_DIR", cache).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    let cache = TempDir::new().expect("temporary folder");
    mkernel_gen(cache.path())
        .args(args)
        .output()
        .expect("mkernel-gen starts")
}

/// Runs the program, which must succeed.
#[track_caller]
fn succeeds(args: &[&str]) -> Output {
    let output = run(args);
    assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
    output
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("not killed")
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

/// Checks that a text has all these parts.
#[track_caller]
fn expect_parts(text: &str, parts: &[impl AsRef<str>]) {
    for part in parts.iter().map(AsRef::as_ref) {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

fn json_lines(output: &Output) -> Vec<Value> {
    stdout(output)
        .lines()
        .map(|line| serde_json::from_str(line).expect("a JSON object"))
        .collect()
}

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
        .display()
        .to_string()
}

fn file(dir: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, text).expect("write");
    path
}

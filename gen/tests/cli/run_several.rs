//! Runs of several kernels and seeds: the choice of kernels, concurrency, the first failure, the summary and signals.

use super::*;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// Three kernels. Only the first one sends over a network. The other two have one label.
const KERNELS: &str = "[[kernel]]\nname = 'up'\nop = 'ag_gemm'\nworld = 2\nnodes = 2\nm = 128\nn = 64\nk = 64\n\
                       [[kernel]]\nop = 'ag_gemm'\nworld = 2\nm = 128\nn = 64\nk = 64\n\
                       [[kernel]]\nop = 'ag_gemm'\nworld = 2\nm = 128\nn = 64\nk = 64\noutput = 'fp32'\n";
const LABEL: &str = "ag_gemm m=128 n=64 k=64";
const SMALL: [&str; 4] = ["run", "--device=sim", "--sms=3", "--calls=1"];
/// A network that is slower than the deadline of [`late`].
const SLOW: &str = "--latency-us=1000000";

/// Runs with a short deadline.
fn late(args: &[&str]) -> Output {
    let cache = TempDir::new().expect("temporary folder");
    let mut command = mkernel_gen(cache.path());
    command.env("MKERNEL_TIMEOUT_MS", "300").args(args);
    command.output().expect("mkernel-gen starts")
}

/// The lines of runs, and the line of the summary, which an error may follow.
pub fn outcomes(output: &Output) -> (Vec<Value>, Value) {
    let mut lines = json_lines(output);
    lines.retain(|line| line["reason"].is_null());
    let summary = lines.pop().expect("a summary");
    assert!(summary["not_run"].is_u64(), "{summary}");
    (lines, summary)
}

#[test]
fn kernels_are_chosen_by_name_label_and_place() {
    let dir = TempDir::new().expect("temporary folder");
    let path = file(&dir, "k.toml", KERNELS).display().to_string();
    let chosen = |names: &[&str]| -> Vec<String> {
        let names = names.iter().map(|name| format!("--kernel={name}"));
        let args: Vec<_> = ["check".to_owned(), "--json".to_owned(), path.clone()]
            .into_iter()
            .chain(names)
            .collect();
        let output = succeeds(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let lines = json_lines(&output).into_iter();
        lines.map(|line| line["place"].to_string()).collect()
    };
    assert_eq!(chosen(&["up"]).len(), 1);
    assert_eq!(chosen(&[LABEL]).len(), 2);
    assert_eq!(chosen(&["up", LABEL]).len(), 3);
    let place = format!("{path}:15:1");
    assert_eq!(chosen(&[&place]), [format!("{place:?}")]);

    let output = run(&["check", &path, "--kernel=upp", "--kernel=down"]);
    assert_eq!(code(&output), 1);
    expect_parts(
        stderr(&output),
        &[
            "--kernel: error: no kernel has the name, label or place `upp`",
            "did you mean `up`?",
            "`down`",
            "2 errors in the configuration",
        ],
    );
}

/// The command that repeats a failed run names this kernel alone, by its place if it shares its label, and fails again.
#[test]
fn one_failed_kernel_is_repeated_alone() {
    let dir = TempDir::new().expect("temporary folder");
    let path = file(&dir, "k.toml", KERNELS).display().to_string();
    let output = late(&[&SMALL[..], &[&path, SLOW, "--seeds=3..4", "-j2", "--json"]].concat());
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let (lines, summary) = outcomes(&output);
    let are_right: Vec<_> = lines.iter().map(|line| line["ok"] == true).collect();
    assert_eq!(are_right, [false, true, true]);
    let counts = ["right", "wrong", "failed", "not_run"].map(|name| summary[name].as_u64());
    assert_eq!(counts, [Some(2), Some(0), Some(1), Some(0)]);
    let replay = lines[0]["replay"].as_str().expect("a command");
    assert!(replay.ends_with(" --kernel up --seed 3"), "{replay}");
    assert!(!replay.contains("-j2"), "{replay}");

    let words: Vec<_> = replay
        .split(' ')
        .skip(1)
        .filter(|word| *word != "--json")
        .collect();
    let output = late(&words);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    expect_parts(stdout(&output), &["0 right, 1 failed, in "]);
}

#[test]
fn no_other_run_starts_after_the_first_failure() {
    let dir = TempDir::new().expect("temporary folder");
    let path = file(&dir, "k.toml", KERNELS).display().to_string();
    let one = ["-j1", "--fail-fast", "--json"];
    let output = late(&[&SMALL[..], &[&path, SLOW, "--seeds=3..9"], &one].concat());
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let (lines, summary) = outcomes(&output);
    assert_eq!((lines.len(), &summary["not_run"]), (1, &17.into()));
    assert_eq!(summary["ok"], false);
}

#[test]
fn long_simulations_are_announced() {
    let cache = TempDir::new().expect("temporary folder");
    let temporary = TempDir::new().expect("temporary folder");
    let kernel = [
        "--op=gemm",
        "--world=1",
        "--m=8192",
        "--n=4096",
        "--k=4096",
        "--seed=1",
    ];
    let mut child = spawn(&cache, &temporary, &kernel);
    await_file(&temporary);
    signal(&child, Signal::INT);
    let output = child_output(&mut child);
    expect_parts(&output.1, &["warning: the simulation may take about"]);
    assert!(output.1.contains("5e8 operations"), "{}", output.1);
}

/// A signal while a kernel compiles or runs ends the process by this signal, after the summary. Neither temporary files nor
/// compilers are left.
#[test]
fn signals_end_runs_with_a_summary_and_without_temporary_files() {
    for wait in [
        Duration::ZERO,
        Duration::from_millis(400),
        Duration::from_secs(4),
    ] {
        let cache = TempDir::new().expect("temporary folder");
        let temporary = TempDir::new().expect("temporary folder");
        let kernel = [
            "--op=gemm",
            "--world=1",
            "--m=4096",
            "--n=4096",
            "--k=4096",
            "--seeds=0..9",
        ];
        let mut child = spawn(&cache, &temporary, &kernel);
        await_file(&temporary);
        thread::sleep(wait);
        signal(&child, Signal::INT);
        let (out, _, status) = child_output(&mut child);
        assert_eq!(status.signal(), Some(2), "{out}");
        assert!(out.ends_with("; interrupted\n"), "{out}");
        assert!(out.contains("0 right, 9 not run, in "), "{out}");
        let left: Vec<_> = fs::read_dir(temporary.path()).expect("a folder").collect();
        assert!(left.is_empty(), "after {wait:?}: {left:?}");
        let left = processes_in(temporary.path());
        assert!(left.is_empty(), "after {wait:?}: {left:?}");
    }
}

/// The working folders of processes that were started in `folder`, such as compilers.
fn processes_in(folder: &Path) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let folders = processes.filter_map(|process| fs::read_link(process.path().join("cwd")).ok());
    folders.filter(|cwd| cwd.starts_with(folder)).collect()
}

fn spawn(cache: &TempDir, temporary: &TempDir, args: &[&str]) -> Child {
    let mut command = mkernel_gen(cache.path());
    command
        .env("TMPDIR", temporary.path())
        .args(SMALL)
        .args(args);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("mkernel-gen starts")
}

/// Waits until the program has created its folder, after which it handles signals.
fn await_file(folder: &TempDir) {
    let started = Instant::now();
    while fs::read_dir(folder.path())
        .expect("a folder")
        .next()
        .is_none()
    {
        assert!(started.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("a child");
}

fn child_output(child: &mut Child) -> (String, String, ExitStatus) {
    let read = |pipe: &mut dyn Read| {
        let mut text = String::new();
        pipe.read_to_string(&mut text).expect("UTF-8");
        text
    };
    let out = read(&mut child.stdout.take().expect("piped"));
    let errors = read(&mut child.stderr.take().expect("piped"));
    (out, errors, child.wait().expect("ends"))
}

/// A suite for each kernel with a test for each seed. Kernels that fail have failures with their description.
#[test]
fn outcomes_are_written_as_junit_xml() {
    let dir = TempDir::new().expect("temporary folder");
    let kernels = file(&dir, "k.toml", KERNELS).display().to_string();
    let xml = dir.path().join("junit.xml").display().to_string();
    let args = [
        &SMALL[..],
        &[&kernels, "--seeds=3..5", SLOW, "--junit", &xml],
    ]
    .concat();
    let output = late(&args);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let text = fs::read_to_string(&xml).expect("a file");
    let document = roxmltree::Document::parse(&text).expect("XML");
    let root = document.root_element();
    let counts = ["tests", "failures", "errors"].map(|name| root.attribute(name));
    assert_eq!(counts, [Some("6"), Some("2"), Some("0")], "{text}");
    let all = |name: &str| -> Vec<_> {
        let nodes = document.descendants();
        nodes.filter(|node| node.has_tag_name(name)).collect()
    };
    let names: Vec<_> = all("testsuite")
        .iter()
        .map(|suite| suite.attribute("name").unwrap_or_default().to_owned())
        .collect();
    assert_eq!(names, ["up", LABEL, LABEL]);
    let cases: Vec<_> = all("testcase")
        .iter()
        .map(|case| case.attribute("name").unwrap_or_default().to_owned())
        .collect();
    assert_eq!(cases, ["seed 3", "seed 4"].repeat(3));
    let failures = all("failure");
    assert_eq!(failures.len(), 2, "{text}");
    for failure in failures {
        let reason = failure.text().unwrap_or_default();
        assert!(reason.contains("to repeat: "), "{reason}");
    }
}

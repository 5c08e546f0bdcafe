//! Small kernels on simulated GPUs. Correct kernels run without a finding under every schedule. Wrong kernels, which
//! differ from them in a line or two, are found, and the finding names the lines. The tests need a C++ compiler.
//!
//! The kernels are in `cu/`. The test `nvrtc` of mkernel-compile also compiles them for GPUs.

mod cases;
mod data;
mod e4m3;
mod harness;

use cases::{Case, Wrong};
use harness::{HostAction, SHAPE, Shape, compile, run, shared_object};
use mkernel_sim::world::Image;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of seeds of each kernel. A correct kernel must be correct under all seeds, and a wrong kernel must be
/// found under at least one seed.
const SEEDS: u64 = 50;

/// Runs `body` for each item, on all cores, and reports all failures together.
fn each<T: Sync>(items: &[T], body: impl Fn(&T) -> Result<String, String> + Sync) {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match body(item) {
                        Ok(report) => println!("{report}"),
                        Err(failure) => failures.lock().expect("no panic").push(failure),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Checks that a correct kernel has no findings and the expected output under all seeds.
fn check_correct(case: &Case) -> Result<String, String> {
    let image = compile(case.text, case.edits)?;
    let contents = case.shape.data.contents();
    for seed in 0..SEEDS {
        let ran = run(&image, case.shape, &contents, seed);
        if !ran.is_correct() {
            return Err(format!("{}, seed {seed}: {ran:#?}", case.name));
        }
    }
    Ok(format!("{}: correct", case.name))
}

/// Checks that a wrong kernel is found under one of the seeds, with the expected words.
fn check_wrong((case, wrong): &(&Case, &Wrong)) -> Result<String, String> {
    let Wrong {
        what,
        edits,
        kind,
        words,
    } = wrong;
    let name = format!("{}, {what}", case.name);
    let edits: Vec<(&str, &str)> = case.edits.iter().chain(*edits).copied().collect();
    let image = compile(case.text, &edits)?;
    let contents = case.shape.data.contents();
    let has_words = |text: &str| words.iter().all(|word| text.contains(word));
    let mut last = None;
    for seed in 0..SEEDS {
        let ran = run(&image, case.shape, &contents, seed);
        let mut findings = ran.findings.iter();
        let is_failure = *kind == "failure" && ran.failures.iter().any(|text| has_words(text));
        if is_failure || findings.any(|finding| finding.kind == *kind && has_words(&finding.text)) {
            return Ok(format!("{name}: {kind}, seed {seed}"));
        }
        last = Some(ran);
    }
    Err(format!(
        "{name}: no finding of kind {kind} with the words {words:?}, but {last:#?}"
    ))
}

#[test]
fn correct_kernels_have_no_findings_under_any_schedule() {
    each(&cases::all(), |case| check_correct(case));
}

#[test]
fn wrong_kernels_are_found_with_their_lines() {
    let wrong: Vec<(&Case, &Wrong)> = cases::all()
        .into_iter()
        .flat_map(|case| case.wrong.iter().map(move |wrong| (case, wrong)))
        .collect();
    each(&wrong, check_wrong);
}

/// Only streams order the writes of the host.
#[test]
fn a_flag_that_the_host_writes_before_its_copy_is_found() {
    let image = compile(include_str!("cu/host.cu"), &[]).expect("compiles");
    let shape = Shape {
        host: HostAction::CopyAndFlag,
        ..SHAPE
    };
    let ran = run(&image, shape, &shape.data.contents(), 0);
    let race = ran.findings.iter().find(|finding| finding.kind == "race");
    let text = &race.expect("found").text;
    assert!(text.contains("by a copy of the host"), "{text}");
    assert!(
        text.contains("mk::load(words(args.workspaces[0]) + lane)"),
        "{text}"
    );
}

/// The loader identifies a kernel by a path with the number of an open file. The number is soon used for another file.
#[test]
fn kernels_that_are_loaded_concurrently_are_not_confused() {
    let marks: Vec<String> = (0..4).map(|mark| format!("// kernel {mark}\n")).collect();
    let host = include_str!("cu/host.cu");
    let kernels: Vec<_> = marks
        .iter()
        .map(|mark| shared_object(&(host.to_owned() + mark), &[]).expect("compiles"))
        .collect();
    std::thread::scope(|scope| {
        for (mark, kernel) in marks.iter().zip(&kernels) {
            scope.spawn(move || {
                for _ in 0..500 {
                    let image = Image::load(kernel).expect("loads");
                    assert!(
                        image.source().ends_with(mark),
                        "the image is that of another kernel"
                    );
                }
            });
        }
    });
}

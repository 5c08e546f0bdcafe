//! Small kernels on simulated GPUs: right ones run without a finding under every schedule; wrong ones, which differ in
//! a line, are found, and the finding names that line. They need a C++ compiler; cargo's linker is usually one.
//!
//! The kernels are in `cu/`; mkernel-compile's test `nvrtc` compiles them for GPUs too.

mod cases;
mod lab;

use cases::{Case, Wrong};
use lab::{Host, SHAPE, Shape, compile, run, shared_object};
use mkernel_sim::world::Image;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Of a right kernel; a wrong one must be found under one of them.
const SEEDS: u64 = 50;

/// Runs `body` for each item, over all cores; all failures at once.
fn each<T: Sync>(items: &[T], body: impl Fn(&T) -> Result<String, String> + Sync) {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match body(item) {
                        Ok(told) => println!("{told}"),
                        Err(failure) => failures.lock().expect("no panic").push(failure),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn check_right(case: &Case) -> Result<String, String> {
    let image = compile(case.text, case.edits)?;
    for seed in 0..SEEDS {
        let ran = run(&image, case.shape, seed);
        if !ran.is_right() {
            return Err(format!("{}, seed {seed}: {ran:#?}", case.name));
        }
    }
    Ok(format!("{}: right", case.name))
}

fn check_wrong((case, wrong): &(&Case, &Wrong)) -> Result<String, String> {
    let Wrong {
        what,
        edits,
        kind,
        says,
    } = wrong;
    let name = format!("{}, {what}", case.name);
    let edits: Vec<(&str, &str)> = case.edits.iter().chain(*edits).copied().collect();
    let image = compile(case.text, &edits)?;
    let tells = |text: &str| says.iter().all(|says| text.contains(says));
    let mut last = None;
    for seed in 0..SEEDS {
        let ran = run(&image, case.shape, seed);
        let mut findings = ran.findings.iter();
        let is_failure = *kind == "failure" && ran.failures.iter().any(|text| tells(text));
        if is_failure || findings.any(|finding| finding.kind == *kind && tells(&finding.text)) {
            return Ok(format!("{name}: {kind}, seed {seed}"));
        }
        last = Some(ran);
    }
    Err(format!(
        "{name}: no {kind} that says {says:?}, but {last:#?}"
    ))
}

#[test]
fn right_kernels_are_right_under_every_schedule() {
    each(&cases::all(), |case| check_right(case));
}

#[test]
fn wrong_kernels_are_found_with_their_lines() {
    let wrong: Vec<(&Case, &Wrong)> = cases::all()
        .into_iter()
        .flat_map(|case| case.wrong.iter().map(move |wrong| (case, wrong)))
        .collect();
    each(&wrong, check_wrong);
}

/// What the host writes is ordered by its streams alone.
#[test]
fn a_flag_that_the_host_writes_before_its_copy_is_found() {
    let image = compile(include_str!("cu/host.cu"), &[]).expect("compiles");
    let shape = Shape {
        host: Host::CopyAndFlag,
        ..SHAPE
    };
    let ran = run(&image, shape, 0);
    let race = ran.findings.iter().find(|finding| finding.kind == "race");
    let text = &race.expect("found").text;
    assert!(
        text.contains("a copy of the host's") || text.contains("by the host"),
        "{text}"
    );
    assert!(
        text.contains("mk::load(words(args.workspaces[0]) + lane)"),
        "{text}"
    );
}

/// The number of an open file, by which the loader knows a kernel, is soon that of another file.
#[test]
fn kernels_that_come_and_go_at_once_are_not_taken_for_each_other() {
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
                    assert!(image.source().ends_with(mark), "another kernel");
                }
            });
        }
    });
}

//! Small kernels on simulated GPUs: right ones run without a finding under every schedule; wrong ones, which differ in
//! a line, are found, and the finding names that line. They need a C++ compiler; cargo's linker is usually one.
//!
//! The kernels are in `cu/`; mkernel-compile's test `nvrtc` compiles them for GPUs too.

mod cases;
mod lab;

use cases::{CASES, Case, Wrong};
use lab::{compile, run};
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
        let ran = run(&image, case.shape, case.beside.as_ref(), seed);
        if !ran.is_right() {
            return Err(format!("{}, seed {seed}: {ran:#?}", case.name));
        }
    }
    Ok(format!("{}: right", case.name))
}

fn check_wrong((case, wrong): &(&Case, &Wrong)) -> Result<String, String> {
    let name = format!("{}, {}", case.name, wrong.what);
    let edits: Vec<(&str, &str)> = case.edits.iter().chain(wrong.edits).copied().collect();
    let image = compile(case.text, &edits)?;
    let beside = wrong.beside.as_ref().or(case.beside.as_ref());
    let (mut found, mut others) = (0, String::new());
    for seed in 0..SEEDS {
        let ran = run(&image, case.shape, beside, seed);
        let says = |text: &str| wrong.says.iter().all(|says| text.contains(says));
        let failed = wrong.kind == "failure" && ran.failures.iter().any(|text| says(text));
        if failed
            || ran
                .findings
                .iter()
                .any(|finding| finding.kind == wrong.kind && says(&finding.text))
        {
            found += 1;
        } else {
            others = format!("seed {seed}: {ran:#?}");
        }
    }
    if found == 0 {
        return Err(format!(
            "{name}: no {} that says {:?}; {others}",
            wrong.kind, wrong.says
        ));
    }
    Ok(format!(
        "{name}: {} under {found} of {SEEDS} seeds",
        wrong.kind
    ))
}

#[test]
fn right_kernels_are_right_under_every_schedule() {
    each(CASES, check_right);
}

#[test]
fn wrong_kernels_are_found_with_their_lines() {
    let wrong: Vec<(&Case, &Wrong)> = CASES
        .iter()
        .flat_map(|case| case.wrong.iter().map(move |wrong| (case, wrong)))
        .collect();
    each(&wrong, check_wrong);
}

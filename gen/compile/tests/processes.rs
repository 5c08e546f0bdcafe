//! The store among several processes. Some of the processes are killed.

mod common;

use common::{
    Killed, child, count, counted, fake_compile, fake_cubin, meeting, source, wait_until,
};
use mkernel_compile::{Key, Store};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::tempdir;

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn eight_processes_compile_once() {
    if let Some(dir) = meeting() {
        count(&dir.join("ready"));
        wait_until("all eight", || counted(&dir.join("ready")) == 8);
        return compile_slowly(&dir);
    }
    let dir = tempdir().expect("temporary folder");
    let mut children: Vec<_> = (0..8)
        .map(|_| Killed::spawn(child("eight_processes_compile_once", dir.path())))
        .collect();
    for child in &mut children {
        assert!(child.wait(LIMIT).success());
    }
    assert_eq!(counted(&dir.path().join("compiled")), 1);
}

/// The work of a child process: builds a kernel in 300 ms.
fn compile_slowly(dir: &Path) {
    let source = source("shared");
    let built = Store::open(dir.join("cache")).get_or_build_with(&source, |source| {
        count(&dir.join("compiled"));
        std::thread::sleep(Duration::from_millis(300));
        fake_compile(source)
    });
    assert_eq!(built.expect("compiles"), fake_cubin(&source));
}

#[test]
fn eight_processes_repair_a_damaged_kernel_once() {
    if let Some(dir) = meeting() {
        count(&dir.join("ready"));
        wait_until("all eight", || counted(&dir.join("ready")) == 8);
        return compile_slowly(&dir);
    }
    let dir = tempdir().expect("temporary folder");
    let source = source("shared");
    let store = Store::open(dir.path().join("cache"));
    store
        .get_or_build_with(&source, fake_compile)
        .expect("compiles");
    let cubin = dir
        .path()
        .join("cache/kernels")
        .join(Key::of(&source).to_string())
        .join("kernel.cubin");
    fs::write(cubin, "damaged").expect("file");
    let name = "eight_processes_repair_a_damaged_kernel_once";
    let mut children: Vec<_> = (0..8)
        .map(|_| Killed::spawn(child(name, dir.path())))
        .collect();
    for child in &mut children {
        assert!(child.wait(LIMIT).success());
    }
    assert_eq!(counted(&dir.path().join("compiled")), 1);
    assert_eq!(store.get(&Key::of(&source)), Some(fake_cubin(&source)));
}

#[test]
fn a_killed_holder_frees_its_lock() {
    let source = source("k");
    if let Some(dir) = meeting() {
        let built = Store::open(dir.join("cache")).get_or_build_with(&source, |_| {
            count(&dir.join("compiling"));
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        panic!("compiled {built:?}");
    }
    let dir = tempdir().expect("temporary folder");
    let mut holder = Killed::spawn(child("a_killed_holder_frees_its_lock", dir.path()));
    wait_until("the child to hold the lock", || {
        counted(&dir.path().join("compiling")) == 1
    });
    let store = Store::open(dir.path().join("cache"));
    let started = Instant::now();
    let waited = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            store
                .get_or_build_with(&source, fake_compile)
                .expect("compiles");
            started.elapsed()
        });
        std::thread::sleep(Duration::from_millis(200));
        assert!(!waiting.is_finished(), "the lock is held");
        holder.0.kill().expect("own child"); // SIGKILL
        waiting.join().expect("no panic")
    });
    assert!(waited < Duration::from_secs(5), "waited {waited:?}");
    assert_eq!(store.get(&Key::of(&source)), Some(fake_cubin(&source)));
}

#[test]
fn killed_writers_leave_only_whole_kernels() {
    if let Some(dir) = meeting() {
        let store = Store::open(dir.join("cache"));
        for i in 0u64.. {
            let source = source(&format!("k{}_{i}", std::process::id()));
            store.put(&Key::of(&source), &source, &fake_cubin(&source));
            count(&dir.join("written"));
        }
        return;
    }
    let dir = tempdir().expect("temporary folder");
    for round in 0..10u64 {
        let before = counted(&dir.path().join("written"));
        let name = "killed_writers_leave_only_whole_kernels";
        let mut writer = Killed::spawn(child(name, dir.path()));
        wait_until("the child to write", || {
            counted(&dir.path().join("written")) > before
        });
        // Each round kills the process at another point of its work.
        std::thread::sleep(Duration::from_micros(500 * round));
        writer.0.kill().expect("own child");
        writer.wait(LIMIT);
    }
    let store = Store::open(dir.path().join("cache"));
    let entries = store.entries();
    assert!(entries.len() >= 10);
    assert_eq!(
        entries.len(),
        fs::read_dir(dir.path().join("cache/kernels"))
            .expect("folder")
            .count()
    );
    for entry in entries {
        assert_eq!(store.get(&entry.key), Some(fake_cubin(&source(&entry.id))));
    }
}

//! The store in one process: hits, misses, damaged entries, threads, bounds.

mod common;

use common::{fake_compile, fake_cubin, no_compile, source, warnings_of};
use mkernel_compile::{Cubin, CudaSource, GenError, Key, Store};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::{TempDir, tempdir};

/// A cache that has one kernel.
fn filled(name: &str) -> (TempDir, Store, CudaSource) {
    let dir = tempdir().expect("temporary folder");
    let store = Store::open(dir.path());
    let source = source(name);
    store
        .get_or_build_with(&source, fake_compile)
        .expect("compiles");
    (dir, store, source)
}

fn entry(root: &Path, source: &CudaSource) -> PathBuf {
    root.join("kernels").join(Key::of(source).to_string())
}

fn folders(path: &Path) -> usize {
    fs::read_dir(path).map_or(0, Iterator::count)
}

#[test]
fn compiles_once_then_finds() {
    let (dir, store, source) = filled("k");
    assert_eq!(store.get(&Key::of(&source)), Some(fake_cubin(&source)));
    assert_eq!(
        store.get_or_build_with(&source, no_compile).expect("found"),
        fake_cubin(&source)
    );
    let other = Store::open(dir.path());
    assert_eq!(
        other.get_or_build_with(&source, no_compile).expect("found"),
        fake_cubin(&source)
    );
    let folder = entry(dir.path(), &source);
    assert_eq!(
        fs::read_to_string(folder.join("kernel.cu")).expect("for people"),
        source.text
    );
    assert_eq!(
        folders(&dir.path().join("tmp")),
        0,
        "nothing is left of writing"
    );
}

#[test]
fn warm_load_is_fast() {
    let (_dir, store, source) = filled("k");
    let mut times: Vec<_> = (0..21)
        .map(|_| {
            let started = Instant::now();
            store.get_or_build_with(&source, no_compile).expect("found");
            started.elapsed()
        })
        .collect();
    times.sort();
    println!(
        "warm load from disk, 50 kB: median {:?}, largest {:?}",
        times[10], times[20]
    );
    assert!(times[10] < Duration::from_millis(50));
}

/// A damage: its description, and a function that causes it in a folder.
type Damage = (&'static str, fn(&Path));

/// Ways to damage an entry.
const DAMAGES: [Damage; 11] = [
    ("truncated cubin", |e| {
        edit(&e.join("kernel.cubin"), |b| b.truncate(100))
    }),
    ("empty cubin", |e| edit(&e.join("kernel.cubin"), Vec::clear)),
    ("longer cubin", |e| {
        edit(&e.join("kernel.cubin"), |b| b.push(0))
    }),
    ("flipped bit in the cubin", |e| {
        edit(&e.join("kernel.cubin"), |b| b[40_000] ^= 4)
    }),
    ("no cubin", |e| {
        fs::remove_file(e.join("kernel.cubin")).expect("file")
    }),
    ("cubin is a folder", |e| {
        fs::remove_file(e.join("kernel.cubin")).expect("file");
        fs::create_dir(e.join("kernel.cubin")).expect("folder");
    }),
    ("truncated manifest", |e| {
        edit(&e.join("manifest.json"), |b| b.truncate(100))
    }),
    ("empty manifest", |e| {
        edit(&e.join("manifest.json"), Vec::clear)
    }),
    ("no manifest", |e| {
        fs::remove_file(e.join("manifest.json")).expect("file")
    }),
    ("another schema", |e| {
        replace(&e.join("manifest.json"), "\"schema\": 3", "\"schema\": 999")
    }),
    ("another register count", |e| {
        replace(&e.join("manifest.json"), "168", "169")
    }),
];

fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("file");
    change(&mut bytes);
    fs::write(path, bytes).expect("file");
}

fn replace(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).expect("file");
    assert!(text.contains(from));
    fs::write(path, text.replacen(from, to, 1)).expect("file");
}

#[test]
fn damaged_entries_are_quarantined_and_rebuilt() {
    for (what, damage) in DAMAGES {
        let (dir, store, source) = filled("k");
        damage(&entry(dir.path(), &source));
        let (found, warnings) = warnings_of(|| store.get(&Key::of(&source)));
        assert_eq!(found, None, "{what}");
        assert_eq!(warnings.len(), 1, "{what}: {warnings:?}");

        let compiled = AtomicUsize::new(0);
        let (built, warnings) = warnings_of(|| {
            store.get_or_build_with(&source, |source| {
                compiled.fetch_add(1, Ordering::Relaxed);
                fake_compile(source)
            })
        });
        assert_eq!(built.expect("compiles"), fake_cubin(&source), "{what}");
        assert_eq!(compiled.into_inner(), 1, "{what}");
        assert_eq!(warnings.len(), 1, "{what}: {warnings:?}");
        assert_eq!(folders(&dir.path().join("quarantine")), 1, "{what}");
        assert_eq!(
            store.get(&Key::of(&source)),
            Some(fake_cubin(&source)),
            "{what}"
        );
    }
}

#[test]
fn no_flipped_bit_of_a_manifest_changes_what_is_loaded() {
    let (dir, store, source) = filled("k");
    let path = entry(dir.path(), &source).join("manifest.json");
    let sound = fs::read(&path).expect("manifest");
    let mut rejected = 0;
    for position in 0..sound.len() {
        let mut bytes = sound.clone();
        bytes[position] ^= 1 << (position % 8);
        fs::write(&path, bytes).expect("manifest");
        match store.get(&Key::of(&source)) {
            None => rejected += 1,
            Some(cubin) => assert_eq!(cubin, fake_cubin(&source), "byte {position}"),
        }
    }
    assert!(rejected >= sound.len() - 1, "{rejected} of {}", sound.len());
}

#[test]
fn an_entry_under_another_key_is_not_used() {
    let (dir, store, first) = filled("first");
    let second = source("second");
    fs::rename(entry(dir.path(), &first), entry(dir.path(), &second)).expect("entry");
    assert_eq!(store.get(&Key::of(&second)), None);
    assert_eq!(
        store
            .get_or_build_with(&second, fake_compile)
            .expect("compiles"),
        fake_cubin(&second)
    );
}

#[test]
fn quarantine_is_bounded() {
    let (dir, store, source) = filled("k");
    for _ in 0..40 {
        edit(&entry(dir.path(), &source).join("kernel.cubin"), Vec::clear);
        store
            .get_or_build_with(&source, fake_compile)
            .expect("compiles");
    }
    assert_eq!(folders(&dir.path().join("quarantine")), 32);
}

/// Requests one kernel on eight threads at once, each with the store that `store` returns. Returns the number of
/// compilations.
fn compiles_of_eight_threads<S: std::ops::Deref<Target = Store>>(
    store: impl Fn() -> S + Sync,
) -> usize {
    let source = source("threads");
    let (compiled, start) = (AtomicUsize::new(0), Barrier::new(8));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let store = store();
                start.wait();
                let cubin = store.get_or_build_with(&source, |source| {
                    compiled.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(100));
                    fake_compile(source)
                });
                assert_eq!(cubin.expect("compiles"), fake_cubin(&source));
            });
        }
    });
    compiled.into_inner()
}

#[test]
fn threads_compile_once() {
    let dir = tempdir().expect("temporary folder");
    let (cached, uncached) = (Store::open(dir.path()), Store::without_cache());
    assert_eq!(compiles_of_eight_threads(|| &cached), 1);
    assert_eq!(compiles_of_eight_threads(|| &uncached), 1);
}

#[test]
fn threads_with_stores_of_their_own_compile_once() {
    let dir = tempdir().expect("temporary folder");
    assert_eq!(
        compiles_of_eight_threads(|| Box::new(Store::open(dir.path()))),
        1
    );
}

#[test]
fn without_cache_nothing_is_kept() {
    let (store, source) = (Store::without_cache(), source("k"));
    store
        .get_or_build_with(&source, fake_compile)
        .expect("compiles");
    assert_eq!(store.get(&Key::of(&source)), None);
}

#[test]
fn failure_shows_the_log_and_saves_the_source() {
    let dir = tempdir().expect("temporary folder");
    let (store, source) = (Store::open(dir.path()), source("broken"));
    let fail = |source: &CudaSource| -> Result<Cubin, GenError> {
        let log = "broken.cu(1): error: no\nmk/base.cuh(7): note: here\n".into();
        Err(GenError::Compile {
            id: source.id.clone(),
            log,
            saved: None,
        })
    };
    let error = store.get_or_build_with(&source, fail).expect_err("fails");
    let GenError::Compile {
        saved: Some(folder),
        ..
    } = &error
    else {
        panic!("{error}")
    };
    assert!(folder.starts_with(dir.path().join("failed")));
    let message = error.to_string();
    assert!(
        message.contains(&format!("{}/broken.cu(1): error: no", folder.display())),
        "{message}"
    );
    assert!(
        message.contains(&format!("{}/mk/base.cuh(7): note", folder.display())),
        "{message}"
    );
    assert_eq!(
        fs::read_to_string(folder.join("broken.cu")).expect("source"),
        source.text
    );
    assert!(folder.join("mk/base.cuh").is_file());
    assert!(
        fs::read_to_string(folder.join("log.txt"))
            .expect("log")
            .contains("error: no")
    );
    // A failure is not remembered.
    store
        .get_or_build_with(&source, fake_compile)
        .expect("compiles");
}

#[test]
fn jit_disabled() {
    let (dir, _, found) = filled("found");
    let store = Store::open(dir.path()).without_jit();
    store.get_or_build_with(&found, no_compile).expect("found");
    let error = store
        .get_or_build_with(&source("other"), no_compile)
        .expect_err("not there");
    assert!(
        matches!(&error, GenError::JitDisabled { id, .. } if id == "other"),
        "{error}"
    );
    assert!(error.to_string().contains("MKERNEL_JIT"), "{error}");
}

#[test]
fn the_oldest_go_when_the_cache_is_full() {
    let dir = tempdir().expect("temporary folder");
    let store = Store::open(dir.path()).with_limit_bytes(160_000);
    let sources: Vec<_> = (0..6).map(|i| source(&format!("k{i}"))).collect();
    for source in &sources {
        store
            .get_or_build_with(source, fake_compile)
            .expect("compiles");
        // File times have a coarse resolution.
        std::thread::sleep(Duration::from_millis(20));
    }
    let kept: Vec<_> = store.entries().into_iter().map(|entry| entry.id).collect();
    assert_eq!(kept, ["k3", "k4", "k5"]);

    let tiny = Store::open(dir.path()).with_limit_bytes(0);
    tiny.get_or_build_with(&source("last"), fake_compile)
        .expect("compiles");
    let kept: Vec<_> = tiny.entries().into_iter().map(|entry| entry.id).collect();
    assert_eq!(kept, ["last"], "the newest stays, whatever its size");
}

#[test]
fn entries_remove_and_clear() {
    let (dir, store, first) = filled("first");
    store
        .get_or_build_with(&source("second"), fake_compile)
        .expect("compiles");
    let entries = store.entries();
    assert_eq!(
        entries.iter().map(|e| e.id.as_str()).collect::<Vec<_>>(),
        ["first", "second"]
    );
    assert_eq!(entries[0].key, Key::of(&first));
    assert_eq!(entries[0].resources, fake_cubin(&first).resources);
    assert_eq!(entries[0].compiler, "NVRTC 13.0, sm_90a");
    assert!(entries[0].bytes > 50_000);
    assert!(entries[0].path.is_dir());

    assert!(store.remove(&Key::of(&first)).expect("removes"));
    assert!(!store.remove(&Key::of(&first)).expect("nothing to remove"));
    assert_eq!(store.entries().len(), 1);
    let cleaned = store.clean(false).expect("cleans");
    assert_eq!(
        (cleaned.kernels, cleaned.others, cleaned.left),
        (1, 0, vec![])
    );
    assert!(cleaned.bytes > 50_000);
    assert_eq!(store.entries(), []);
    let nothing = store.clean(false).expect("nothing to remove");
    assert_eq!((nothing.kernels, nothing.bytes), (0, 0));
    Store::open(dir.path().join("absent"))
        .clean(false)
        .expect("nothing to remove");
}

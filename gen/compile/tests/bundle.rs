//! Ahead-of-time bundles.

mod common;

use common::{fake_compile, fake_cubin, no_compile, source, warnings_of};
use mkernel_compile::{BUNDLE_MANIFEST, Bundle, CudaSource, GenError, Key, Store};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::{TempDir, tempdir};

fn write(path: &Path, names: &[&str]) -> Result<(), GenError> {
    let kernels = names.iter().map(|name| {
        let source = source(name);
        (source.clone(), Key::of(&source), fake_cubin(&source))
    });
    Bundle::write(path, kernels)
}

/// A bundle of two kernels.
fn bundle() -> (TempDir, PathBuf) {
    let dir = tempdir().expect("temporary folder");
    let path = dir.path().join("bundle");
    write(&path, &["a", "b"]).expect("writes");
    (dir, path)
}

fn cubin_file(bundle: &Path, source: &CudaSource) -> PathBuf {
    bundle
        .join(Key::of(source).to_string())
        .join("kernel.cubin")
}

#[test]
fn is_used_before_cache_and_compiler() {
    let (dir, path) = bundle();
    for store in [
        Store::without_cache().without_jit(),
        Store::open(dir.path().join("cache")),
    ] {
        let store = store.with_bundle(&path);
        for name in ["a", "b"] {
            let (found, warnings) =
                warnings_of(|| store.get_or_build_with(&source(name), no_compile));
            assert_eq!(found.expect("found"), fake_cubin(&source(name)));
            assert_eq!(warnings, [""; 0]);
        }
        assert_eq!(store.entries(), [], "nothing was cached");
        let ids: Vec<_> = store.bundles()[0]
            .entries()
            .into_iter()
            .map(|entry| entry.id)
            .collect();
        assert_eq!(ids, ["a", "b"]);
    }
}

#[test]
fn a_kernel_of_no_bundle_is_compiled() {
    let (_dir, path) = bundle();
    let store = Store::without_cache().with_bundle(&path);
    let (built, warnings) = warnings_of(|| store.get_or_build_with(&source("c"), fake_compile));
    assert_eq!(built.expect("compiles"), fake_cubin(&source("c")));
    assert_eq!(warnings, [""; 0]);
}

#[test]
fn a_kernel_from_other_sources_is_compiled_with_a_warning() {
    let (_dir, path) = bundle();
    let store = Store::without_cache().with_bundle(&path);
    let changed = CudaSource {
        text: "// changed\n".into(),
        ..source("a")
    };
    let (built, warnings) = warnings_of(|| store.get_or_build_with(&changed, fake_compile));
    assert_eq!(built.expect("compiles"), fake_cubin(&changed));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("other sources"), "{warnings:?}");
}

#[test]
fn a_damaged_kernel_is_a_warning_and_a_miss() {
    let (_dir, path) = bundle();
    let file = cubin_file(&path, &source("a"));
    fs::write(&file, "damaged").expect("file");
    let store = Store::without_cache().with_bundle(&path);
    let (found, warnings) = warnings_of(|| store.get(&Key::of(&source("a"))));
    assert_eq!((found, warnings.len()), (None, 1), "{warnings:?}");
    assert_eq!(
        store
            .get_or_build_with(&source("a"), fake_compile)
            .expect("compiles"),
        fake_cubin(&source("a"))
    );
    assert_eq!(
        store
            .get_or_build_with(&source("b"), no_compile)
            .expect("found"),
        fake_cubin(&source("b"))
    );
    assert_eq!(fs::read_to_string(file).expect("untouched"), "damaged");

    fs::remove_dir_all(path.join(Key::of(&source("b")).to_string())).expect("folder");
    let (found, warnings) = warnings_of(|| store.get(&Key::of(&source("b"))));
    assert_eq!((found, warnings.len()), (None, 1), "{warnings:?}");
}

#[test]
fn a_damaged_bundle_is_a_warning_and_a_miss() {
    for contents in [
        None,
        Some(""),
        Some("{"),
        Some("{\"schema\": 7}"),
        Some("[]"),
        Some("{\"schema\": 3}"),
    ] {
        let (_dir, path) = bundle();
        match contents {
            Some(text) => fs::write(path.join(BUNDLE_MANIFEST), text).expect("file"),
            None => fs::remove_dir_all(&path).expect("folder"),
        }
        assert!(
            matches!(Bundle::open(&path), Err(GenError::ReadBundle { .. })),
            "{contents:?}"
        );
        let (store, warnings) = warnings_of(|| Store::without_cache().with_bundle(&path));
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].contains(&*path.to_string_lossy()),
            "{warnings:?}"
        );
        assert_eq!(
            store
                .get_or_build_with(&source("a"), fake_compile)
                .expect("compiles"),
            fake_cubin(&source("a"))
        );
    }
}

#[test]
fn replaces_an_older_bundle_and_an_empty_folder() {
    let (dir, path) = bundle();
    write(&path, &["c", "c"]).expect("writes");
    let ids: Vec<_> = Bundle::open(&path)
        .expect("opens")
        .entries()
        .into_iter()
        .map(|entry| entry.id)
        .collect();
    assert_eq!(
        ids,
        ["c"],
        "the older one is gone, and a kernel given twice is there once"
    );
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).expect("folder");
    write(&empty, &["a"]).expect("writes");
    write(&dir.path().join("new/deep"), &[]).expect("writes");
    let left: Vec<_> = fs::read_dir(dir.path())
        .expect("folder")
        .flatten()
        .map(|e| e.file_name())
        .collect();
    assert_eq!(left.len(), 3, "nothing temporary is left: {left:?}");
}

#[test]
fn never_replaces_anything_else() {
    let dir = tempdir().expect("temporary folder");
    let precious = dir.path().join("precious");
    fs::write(&precious, "x").expect("file");
    assert!(matches!(
        write(dir.path(), &["a"]),
        Err(GenError::NotABundle(_))
    ));
    assert!(matches!(
        write(&precious, &["a"]),
        Err(GenError::NotABundle(_))
    ));
    assert_eq!(fs::read_to_string(&precious).expect("still there"), "x");
    assert!(matches!(
        write(&precious.join("below"), &["a"]),
        Err(GenError::NotABundle(_) | GenError::WriteBundle { .. })
    ));
    assert!(matches!(
        write(Path::new("/proc/mkernel"), &["a"]),
        Err(GenError::WriteBundle { .. })
    ));
}

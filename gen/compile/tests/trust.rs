//! The owners of files that the store uses, and the files that it removes.

mod common;

use common::{count, counted, fake_compile, fake_cubin, no_compile, source, warnings_of};
use mkernel_compile::{BUNDLE_MANIFEST, Bundle, CudaSource, GenError, Key, Store};
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::{TempDir, tempdir};

/// A cache that has one kernel.
fn filled() -> (TempDir, CudaSource) {
    let (dir, source) = (tempdir().expect("temporary folder"), source("k"));
    let store = Store::open(dir.path().join("cache"));
    store
        .get_or_build_with(&source, fake_compile)
        .expect("compiles");
    (dir, source)
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("own");
}

/// Builds `source` twice in the cache `root`, and counts how often it was compiled, with the warnings.
fn compiles_of_two(root: &Path, source: &CudaSource) -> (usize, Vec<String>) {
    let counter = tempdir().expect("temporary folder");
    let counter = counter.path().join("compiled");
    let ((), warnings) = warnings_of(|| {
        for _ in 0..2 {
            let built = Store::open(root).get_or_build_with(source, |source| {
                count(&counter);
                fake_compile(source)
            });
            assert_eq!(built.expect("compiles"), fake_cubin(source));
        }
    });
    (counted(&counter), warnings)
}

#[test]
fn a_cache_that_others_can_write_is_neither_read_nor_written() {
    for (part, mode) in [
        ("", 0o777),
        ("", 0o1777),
        ("", 0o770),
        ("kernels", 0o777),
        ("kernels", 0o775),
    ] {
        let (dir, source) = filled();
        let root = dir.path().join("cache");
        chmod(&root.join(part), mode);
        let (compiled, warnings) = compiles_of_two(&root, &source);
        assert_eq!(compiled, 2, "{part} {mode:o}: each builds its own");
        assert_eq!(warnings.len(), 1, "{part} {mode:o}: {warnings:?}");
        assert!(
            warnings[0].contains("other users can write to"),
            "{warnings:?}"
        );
        let is_shared = mode & 0o3002 != 0;
        assert_eq!(warnings[0].contains("chmod"), !is_shared, "{warnings:?}");
        assert!(warnings[0].contains("MKERNEL_CACHE_DIR"), "{warnings:?}");
        let error = Store::open(&root).without_jit();
        let error = error
            .get_or_build_with(&source, no_compile)
            .expect_err("not used");
        assert!(matches!(error, GenError::JitDisabled { .. }), "{error}");
    }
}

#[test]
fn locks_that_others_can_write_are_not_waited_for() {
    let (dir, _) = filled();
    let root = dir.path().join("cache");
    chmod(&root.join("locks"), 0o777);
    let (built, warnings) =
        warnings_of(|| Store::open(&root).get_or_build_with(&source("other"), fake_compile));
    built.expect("compiles");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("locks"), "{warnings:?}");
}

#[test]
fn an_entry_that_others_can_write_is_compiled_anew() {
    for part in ["", "manifest.json", "kernel.cubin"] {
        for mode in [0o777, 0o775] {
            let (dir, source) = filled();
            let root = dir.path().join("cache");
            let entry = root.join("kernels").join(Key::of(&source).to_string());
            chmod(&entry.join(part), mode);
            let (compiled, warnings) = compiles_of_two(&root, &source);
            assert_eq!(compiled, 1, "{part}: once, then stored again");
            assert_eq!(warnings.len(), 1, "{part}: {warnings:?}");
            assert!(
                warnings[0].contains("other users can write"),
                "{warnings:?}"
            );
        }
    }
}

/// A link in place of a file or folder, such as a link by another user to a file of that user, is not followed.
#[test]
fn links_are_not_followed() {
    for part in ["manifest.json", "kernel.cubin", ""] {
        let (dir, source) = filled();
        let root = dir.path().join("cache");
        let entry = root.join("kernels").join(Key::of(&source).to_string());
        let (linked, aside) = (entry.join(part), dir.path().join("aside"));
        let linked = PathBuf::from(linked.to_string_lossy().trim_end_matches('/'));
        fs::rename(&linked, &aside).expect("own");
        symlink(&aside, &linked).expect("link");
        let (compiled, warnings) = compiles_of_two(&root, &source);
        assert_eq!(compiled, 1, "{part}: once, then stored again");
        assert_eq!(warnings.len(), 1, "{part}: {warnings:?}");
    }
}

#[test]
fn a_pipe_in_place_of_a_file_blocks_nobody() {
    for part in ["manifest.json", "kernel.cubin"] {
        let (dir, source) = filled();
        let root = dir.path().join("cache");
        let entry = root.join("kernels").join(Key::of(&source).to_string());
        fs::remove_file(entry.join(part)).expect("own");
        let made = std::process::Command::new("mkfifo")
            .arg(entry.join(part))
            .status();
        assert!(made.expect("mkfifo starts").success());
        let (compiled, warnings) = compiles_of_two(&root, &source);
        assert_eq!((compiled, warnings.len()), (1, 1), "{part}: {warnings:?}");
    }
}

#[test]
fn an_image_whose_header_lies_is_compiled_anew() {
    let dir = tempdir().expect("temporary folder");
    let (store, source) = (Store::open(dir.path().join("cache")), source("k"));
    let mut lying = fake_cubin(&source);
    lying.bytes[60] = 1; // The header now states one section, at offset 0 with size 0.
    store.put(&Key::of(&source), &source, &lying);
    let (found, warnings) = warnings_of(|| store.get(&Key::of(&source)));
    assert_eq!((found, warnings.len()), (None, 1), "{warnings:?}");
    assert!(warnings[0].contains("ELF"), "{warnings:?}");
}

#[test]
fn a_bundle_that_others_can_write_is_left_out() {
    for (part, mode) in [("", 0o777), (BUNDLE_MANIFEST, 0o666), ("", 0o775)] {
        let dir = tempdir().expect("temporary folder");
        let (path, source) = (dir.path().join("bundle"), source("a"));
        let kernel = (source.clone(), Key::of(&source), fake_cubin(&source));
        Bundle::write(&path, [kernel]).expect("writes");
        chmod(&path.join(part), mode);
        let (stores, warnings) = warnings_of(|| {
            [(); 2].map(|()| Store::without_cache().with_bundle(&path).without_jit())
        });
        assert_eq!(warnings.len(), 1, "once for all ranks: {warnings:?}");
        assert!(
            warnings[0].contains("other users can write"),
            "{warnings:?}"
        );
        for store in stores {
            assert!(store.bundles().is_empty());
            assert_eq!(store.get(&Key::of(&source)), None);
        }
    }
}

#[test]
fn an_error_without_jit_says_why_the_stored_kernel_is_unusable() {
    let dir = tempdir().expect("temporary folder");
    let (path, source) = (dir.path().join("bundle"), source("a"));
    let kernel = (source.clone(), Key::of(&source), fake_cubin(&source));
    Bundle::write(&path, [kernel]).expect("writes");
    let cubin = path.join(Key::of(&source).to_string()).join("kernel.cubin");
    fs::write(cubin, "damaged").expect("own");
    let store = Store::without_cache().with_bundle(&path).without_jit();
    let error = store
        .get_or_build_with(&source, no_compile)
        .expect_err("damaged");
    let text = error.to_string();
    assert!(
        text.contains("checksum") && !text.contains("in no bundle"),
        "{text}"
    );

    let simulated = CudaSource {
        arch: mkernel_spec::Arch::Sm90a,
        backend: mkernel_spec::Backend::HostCxx,
        ..source
    };
    let error = store
        .get_or_build_with(&simulated, no_compile)
        .expect_err("not there");
    let text = error.to_string();
    assert!(text.contains("run it once without MKERNEL_JIT=0"), "{text}");
}

/// A folder in `path` with a file in it, two days old.
fn foreign(path: &Path) -> PathBuf {
    fs::create_dir_all(path).expect("folder");
    fs::write(path.join("work"), "of somebody").expect("file");
    let old = SystemTime::now() - Duration::from_secs(2 * 86_400);
    let folder = File::open(path).expect("own");
    folder
        .set_times(FileTimes::new().set_modified(old))
        .expect("own");
    path.to_owned()
}

/// Folders in a cache that mkernel did not create, although they resemble its own.
fn foreigners(root: &Path) -> Vec<PathBuf> {
    let key = "0".repeat(64);
    let names = [
        "kernels/mydir",
        &format!("kernels/{key}"),
        "tmp/my_old_work",
        "tmp/.mkernel-notes",
        "quarantine/old",
        "failed/experiment-1",
        "failed/run-0123456789abcdef",
    ];
    names.iter().map(|name| foreign(&root.join(name))).collect()
}

#[test]
fn foreign_folders_outlive_pruning_and_cleaning() {
    let dir = tempdir().expect("temporary folder");
    let root = dir.path().join("X");
    let kept = foreigners(&root);
    let abandoned = foreign(&root.join("tmp/.mkernel-aBc123"));
    for path in ["", "kernels", "tmp", "quarantine", "failed"] {
        chmod(&root.join(path), 0o755);
    }
    let store = Store::open(&root).with_limit_bytes(0);
    for name in ["first", "second"] {
        let built = warnings_of(|| store.get_or_build_with(&source(name), fake_compile));
        built.0.expect("compiles");
        assert_eq!(built.1, [""; 0], "the folder is a cache");
    }
    assert!(!abandoned.exists(), "what a killed process left is removed");
    let all_kept = || {
        for path in &kept {
            assert!(path.join("work").is_file(), "{}", path.display());
        }
    };
    all_kept();
    let ids: Vec<_> = store.entries().into_iter().map(|entry| entry.id).collect();
    assert_eq!(ids, ["second"], "the oldest goes");

    // A foreign file in a kernel's folder keeps the folder.
    store
        .get_or_build_with(&source("third"), fake_compile)
        .expect("compiles");
    let third = root
        .join("kernels")
        .join(Key::of(&source("third")).to_string());
    fs::write(third.join("notes"), "of somebody").expect("file");
    store
        .get_or_build_with(&source("fourth"), fake_compile)
        .expect("compiles");

    let planned = store.clean(true).expect("plans");
    assert_eq!(store.entries().len(), 2, "nothing was removed");
    let cleaned = store.clean(false).expect("cleans");
    assert_eq!(planned, cleaned);
    assert_eq!(cleaned.kernels, 1);
    all_kept();
    assert!(third.join("notes").is_file());
    let mut expected = kept.clone();
    expected.push(third);
    let (mut left, mut expected) = (cleaned.left, expected);
    left.sort();
    expected.sort();
    assert_eq!(left, expected);
}

#[test]
fn a_folder_with_other_things_in_it_is_no_cache() {
    let dir = tempdir().expect("temporary folder");
    let project = dir.path().join("project");
    fs::create_dir(&project).expect("folder");
    fs::write(project.join("Cargo.toml"), "").expect("file");
    let bundle = project.join("kernels");
    let kernel = source("a");
    let kernels = || [(kernel.clone(), Key::of(&kernel), fake_cubin(&kernel))];
    Bundle::write(&bundle, kernels()).expect("writes");

    // A bundle has almost the layout of a cache.
    let lone = dir.path().join("lone");
    Bundle::write(&lone.join("kernels"), kernels()).expect("writes");
    for root in [&project, &lone] {
        chmod(root, 0o755);
        let store = Store::open(root);
        let error = store.clean(false).expect_err("not a cache");
        assert!(matches!(error, GenError::NotACache(_)), "{error}");
        store.remove(&Key::of(&kernel)).expect_err("not a cache");
        let (built, warnings) = warnings_of(|| store.get_or_build_with(&source("b"), fake_compile));
        built.expect("compiles");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("CACHEDIR.TAG"), "{warnings:?}");
        let left: Vec<_> = fs::read_dir(root).expect("folder").flatten().collect();
        assert!(left.len() <= 2, "nothing was added: {left:?}");
        let bundle = Bundle::open(root.join("kernels")).expect("still there");
        assert_eq!(bundle.entries().len(), 1);
    }
}

#[test]
fn a_cache_is_tagged() {
    let (dir, source) = filled();
    let root = dir.path().join("cache");
    let tag = fs::read_to_string(root.join("CACHEDIR.TAG")).expect("written");
    assert!(tag.starts_with("Signature: 8a477f597d28d172789f06886806bc55\n"));
    let mode = fs::metadata(&root).expect("own").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // With the tag, foreign files that are added later do not matter.
    fs::write(root.join("notes"), "").expect("file");
    let (compiled, warnings) = compiles_of_two(&root, &source);
    assert_eq!((compiled, warnings.len()), (0, 0), "{warnings:?}");
    let cleaned = Store::open(&root).clean(false).expect("cleans");
    assert_eq!(cleaned.left, [root.join("notes")]);
}

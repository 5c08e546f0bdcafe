//! A cache whose medium fails leaves a working program and one warning.
//!
//! Permissions do not stop root, and many CI jobs run as root. The medium therefore fails in ways that root cannot
//! override: a file in place of a folder, `/proc`, a limit on file sizes.

mod common;

use common::{child, fake_compile, fake_cubin, meeting, no_compile, source, warnings_of};
use mkernel_compile::{GenError, HostCxx, Key, Store};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::tempdir;

/// Builds two kernels that the cache cannot keep, and checks that one warning names the root.
fn assert_works_with_one_warning(store: &Store) {
    let ((), warnings) = warnings_of(|| {
        for name in ["one", "two"] {
            let source = source(name);
            let built = store.get_or_build_with(&source, fake_compile);
            assert_eq!(built.expect("compiles"), fake_cubin(&source));
        }
    });
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let root = store.root().expect("a cache").to_string_lossy();
    assert!(warnings[0].contains(&*root), "{warnings:?}");
    assert_eq!(store.entries(), []);
}

#[test]
fn the_root_is_a_file() {
    let dir = tempdir().expect("temporary folder");
    let root = dir.path().join("file");
    fs::write(&root, "").expect("file");
    assert_works_with_one_warning(&Store::open(&root));
    assert_works_with_one_warning(&Store::open(root.join("below")));
}

#[test]
fn no_folder_can_be_made() {
    assert_works_with_one_warning(&Store::open("/proc/mkernel"));
}

#[test]
fn every_part_of_the_root_is_a_file() {
    let dir = tempdir().expect("temporary folder");
    for name in ["kernels", "tmp", "locks", "failed", "quarantine"] {
        fs::write(dir.path().join(name), "").expect("file");
    }
    assert_works_with_one_warning(&Store::open(dir.path()));
}

#[test]
fn a_cache_that_can_only_be_read_is_read_in_silence() {
    let dir = tempdir().expect("temporary folder");
    let kept = source("kept");
    Store::open(dir.path())
        .get_or_build_with(&kept, fake_compile)
        .expect("compiles");
    for name in ["tmp", "locks"] {
        fs::remove_dir_all(dir.path().join(name)).expect("folder");
        fs::write(dir.path().join(name), "").expect("file");
    }
    let store = Store::open(dir.path());
    let (found, warnings) = warnings_of(|| store.get_or_build_with(&kept, no_compile));
    assert_eq!(found.expect("found"), fake_cubin(&kept));
    assert_eq!(warnings, [""; 0]);

    let ((), warnings) = warnings_of(|| {
        store
            .get_or_build_with(&source("new"), fake_compile)
            .expect("compiles");
    });
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

#[test]
fn a_damaged_kernel_that_cannot_be_moved_is_compiled_each_time() {
    let dir = tempdir().expect("temporary folder");
    let (store, source) = (Store::open(dir.path()), source("k"));
    store
        .get_or_build_with(&source, fake_compile)
        .expect("compiles");
    let folder = dir
        .path()
        .join("kernels")
        .join(Key::of(&source).to_string());
    fs::write(folder.join("kernel.cubin"), "").expect("file");
    fs::write(dir.path().join("quarantine"), "").expect("file");
    for _ in 0..2 {
        let built = store.get_or_build_with(&source, fake_compile);
        assert_eq!(built.expect("compiles"), fake_cubin(&source));
    }
}

#[test]
fn a_failed_kernel_is_saved_elsewhere() {
    for store in [Store::open("/proc/mkernel2"), Store::without_cache()] {
        let source = source("broken");
        let error = store.get_or_build_with(&source, |source| {
            Err(GenError::Compile {
                id: source.id.clone(),
                log: "broken.cu(1): error".into(),
                saved: None,
            })
        });
        let Err(GenError::Compile {
            saved: Some(folder),
            log,
            ..
        }) = error
        else {
            panic!("{error:?}")
        };
        assert_eq!(log, format!("{}/broken.cu(1): error", folder.display()));
        assert_eq!(
            fs::read_to_string(folder.join("broken.cu")).expect("source"),
            source.text
        );
        fs::remove_dir_all(folder).expect("own folder");
    }
}

/// Folders can be made, but no byte can be written, as on a full disk.
#[test]
fn the_medium_is_full() {
    if let Some(root) = meeting() {
        fs::write(root.join("tmp/probe"), "x").expect_err("the limit on file sizes");
        assert_works_with_one_warning(&Store::open(&root));
        return;
    }
    let dir = tempdir().expect("temporary folder");
    let (store, first) = (Store::open(dir.path()), source("first"));
    store.put(&Key::of(&first), &first, &fake_cubin(&first));
    assert!(store.remove(&Key::of(&first)).expect("removes"));
    let test = child("the_medium_is_full", dir.path());
    // With SIGXFSZ ignored, a write beyond the limit fails with an error. Otherwise the signal would end the process.
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh"]);
    limited.arg(test.get_program()).args(test.get_args());
    limited.envs(own_envs(&test));
    assert_passes(limited);
    let left = |name: &str| fs::read_dir(dir.path().join(name)).map_or(0, Iterator::count);
    assert_eq!(
        (left("kernels"), left("tmp")),
        (0, 1),
        "nothing half-written is left, but the probe"
    );
}

#[test]
fn no_home() {
    if meeting().is_some() {
        let (store, warnings) = warnings_of(Store::from_env);
        let store = store.expect("all variables are valid");
        assert_eq!(store.root(), None);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("HOME"), "{warnings:?}");
        let (built, warnings) = warnings_of(|| store.get_or_build_with(&source("k"), fake_compile));
        assert_eq!(built.expect("compiles"), fake_cubin(&source("k")));
        assert_eq!(warnings, [""; 0]);
        return;
    }
    run_with_env("no_home", Path::new("."), &[]);
}

#[test]
fn the_environment_decides() {
    if let Some(dir) = meeting() {
        let (store, warnings) = warnings_of(Store::from_env);
        let store = store.expect("all variables are valid");
        assert_eq!(store.root(), Some(dir.join("cache").as_path()));
        assert_eq!(warnings.len(), 1, "an absent bundle: {warnings:?}");
        let built = store.get_or_build_with(&source("k"), no_compile);
        assert!(
            matches!(built, Err(GenError::JitDisabled { .. })),
            "{built:?}"
        );
        return;
    }
    let dir = tempdir().expect("temporary folder");
    let (cache, bundle) = (dir.path().join("cache"), dir.path().join("absent"));
    let vars = [
        ("MKERNEL_CACHE_DIR", cache.as_os_str()),
        ("MKERNEL_BUNDLE", bundle.as_os_str()),
        ("MKERNEL_JIT", "0".as_ref()),
    ];
    run_with_env("the_environment_decides", dir.path(), &vars);
}

#[test]
fn the_cache_is_switched_off() {
    if meeting().is_some() {
        let (store, warnings) = warnings_of(Store::from_env);
        let store = store.expect("all variables are valid");
        assert_eq!((store.root(), warnings.len()), (None, 0), "{warnings:?}");
        return;
    }
    run_with_env(
        "the_cache_is_switched_off",
        Path::new("."),
        &[("MKERNEL_CACHE", "0".as_ref())],
    );
}

/// A program that runs another program with failing calls of `flock`, as on a file system without locks.
const WITHOUT_FLOCK: &str = r"
#include <cerrno>
#include <cstddef>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int, char** argv) {
  sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_flock, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {4, filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
  execv(argv[1], argv + 1);
  return 2;
}
";

#[test]
fn a_file_system_without_locks_keeps_kernels() {
    if let Some(root) = meeting() {
        let ((), warnings) = warnings_of(|| {
            for name in ["one", "two"] {
                let source = source(name);
                let store = Store::open(&root);
                let built = store.get_or_build_with(&source, fake_compile);
                assert_eq!(built.expect("compiles"), fake_cubin(&source));
                let found = Store::open(&root).get_or_build_with(&source, no_compile);
                assert_eq!(found.expect("is kept"), fake_cubin(&source));
            }
        });
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("has no locks"), "{warnings:?}");
        assert!(
            warnings[0].contains(&*root.to_string_lossy()),
            "{warnings:?}"
        );
        assert!(!warnings[0].contains("MKERNEL_CACHE=0"), "{warnings:?}");
        return;
    }
    let dir = tempdir().expect("temporary folder");
    let (text, program) = (dir.path().join("run.cpp"), dir.path().join("run"));
    fs::write(&text, WITHOUT_FLOCK).expect("file");
    let mut cxx = HostCxx::load().expect("a C++ compiler").command();
    let compiled = cxx.arg("-o").arg(&program).arg(&text).status();
    assert!(compiled.expect("the compiler starts").success());
    let name = "a_file_system_without_locks_keeps_kernels";
    let test = child(name, &dir.path().join("cache"));
    let mut without_flock = Command::new(program);
    without_flock.arg(test.get_program()).args(test.get_args());
    without_flock.envs(own_envs(&test));
    assert_passes(without_flock);
}

/// Runs a test of this file in a child process whose environment has only these variables.
fn run_with_env(name: &str, folder: &Path, vars: &[(&str, &OsStr)]) {
    let test = child(name, folder);
    let mut command = Command::new(test.get_program());
    command
        .args(test.get_args())
        .env_clear()
        .envs(own_envs(&test))
        .envs(vars.iter().copied());
    assert_passes(command);
}

fn own_envs(command: &Command) -> impl Iterator<Item = (&OsStr, &OsStr)> {
    command
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)))
}

/// Checks that the child has run one test. With a wrong name, the child would run no test and succeed.
fn assert_passes(mut command: Command) {
    let output = command.output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
fn waiting_for_a_lock_ends() {
    let dir = tempdir().expect("temporary folder");
    let source = source("slow");
    let (first, second) = (
        Store::open(dir.path()),
        Store::open(dir.path()).with_lock_wait(Duration::from_millis(50)),
    );
    let ((), warnings) = std::thread::scope(|scope| {
        let (started, has_started) = std::sync::mpsc::channel();
        let (finish, may_finish) = std::sync::mpsc::channel();
        let source = &source;
        scope.spawn(move || {
            first.get_or_build_with(source, |source| {
                started.send(()).expect("the other thread waits");
                may_finish.recv().expect("the other thread sends");
                fake_compile(source)
            })
        });
        has_started.recv().expect("the other thread sends");
        let result = warnings_of(|| {
            second
                .get_or_build_with(source, fake_compile)
                .expect("compiles");
        });
        finish.send(()).expect("the other thread waits");
        result
    });
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("slow"), "{warnings:?}");
}

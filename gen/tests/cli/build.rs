//! NVRTC, the cache and bundles.

use super::*;
use mkernel_compile::{Bundle, KernelTemplate, Key};
use mkernel_spec::{
    CollectiveConfig, CollectiveOp, CollectiveShape, Device, Dim, KernelConfig, KernelPlan,
    Protocol, SizedSpec,
};

/// A `python3` that does `script` instead of installing; `$target` is the folder given to it, and `$requirements` the
/// file. It refuses to run if it would take modules from the current folder, or without the digests.
fn fake_python(dir: &TempDir, script: &str) {
    let text = format!(
        "#!/bin/sh
[ \"$1 $2 $3\" = '-I -m pip' ] || {{ echo \"not isolated: $*\" >&2; exit 1; }}
case \"$*\" in
  *--only-binary=:all:*--require-hashes*) ;;
  *) echo \"not pinned: $*\" >&2; exit 1 ;;
esac
while [ $# -gt 0 ]; do
  case $1 in
    --target) target=$2; shift ;;
    -r) requirements=$2; shift ;;
  esac
  shift
done
[ $(grep -o 'sha256:[0-9a-f]\\{{64\\}}' \"$requirements\" | wc -l) = 2 ] || {{ echo no digests >&2; exit 1; }}
{script}
"
    );
    let path = file(dir, "python3", &text);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
}

fn fetch(path: &TempDir, out: &Path) -> Output {
    let search = format!("{}:/usr/bin:/bin", path.path().display());
    let mut command = mkernel_gen(path.path());
    let command = command
        .env("PATH", search)
        .args(["fetch-nvrtc", "--json", "--out"])
        .arg(out);
    command.output().expect("mkernel-gen starts")
}

#[test]
#[ignore = "needs libnvrtc"]
fn nvrtc_is_fetched_once() {
    let real = mkernel_compile::fetch_dir().expect("HOME is set");
    let dir = TempDir::new().expect("temporary folder");
    let out = dir.path().join("nvrtc");
    // Other users cannot write to the files even with an umask of 0.
    fake_python(
        &dir,
        &format!(
            "umask 0; mkdir -p $target/nvidia; cp -r {}/nvidia/cu13 $target/nvidia; chmod -R go+w $target",
            real.display()
        ),
    );
    let output = fetch(&dir, &out);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(json_lines(&output)[0]["installed"], true);
    let library = out.join("nvidia/cu13/lib/libnvrtc.so.13");
    assert_eq!(
        json_lines(&output)[0]["library"],
        library.display().to_string()
    );
    assert!(library.is_file());

    fake_python(&dir, "exit 1");
    let output = fetch(&dir, &out);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(json_lines(&output)[0]["installed"], false);
}

#[test]
fn an_installation_that_fails_leaves_nothing() {
    let dir = TempDir::new().expect("temporary folder");
    let out = dir.path().join("nvrtc");
    for (script, reason) in [
        ("echo no network >&2; exit 1", "no network"),
        ("mkdir -p $target/something/else", "has no libnvrtc"),
        (
            "mkdir -p $target/nvidia/cu13/lib && echo planted > $target/nvidia/cu13/lib/libnvrtc.so.13",
            "its SHA-256 is",
        ),
    ] {
        fake_python(&dir, script);
        let output = fetch(&dir, &out);
        assert_eq!(code(&output), 4);
        expect_parts(stderr(&output), &["cannot install NVRTC: ", reason]);
        let names = std::fs::read_dir(dir.path())
            .expect("readable")
            .flatten()
            .map(|e| e.file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["python3"]);
    }
}

/// A planted library in the folder for fetched libraries is neither used nor loaded.
#[test]
fn a_planted_library_is_not_used() {
    let cache = TempDir::new().expect("temporary folder");
    let folder = cache.path().join("nvrtc/nvidia/cu13/lib");
    std::fs::create_dir_all(&folder).expect("folder");
    let library = file(&cache, "nvrtc/nvidia/cu13/lib/libnvrtc.so.13", "planted");
    let without_home = |args: &[&str]| {
        let mut command = mkernel_gen(cache.path());
        command.env_remove("XDG_CACHE_HOME").env_remove("HOME");
        command.args(args).output().expect("mkernel-gen starts")
    };
    for (mode, reason) in [
        (0o644, "its SHA-256 is"),
        (0o666, "other users can write to"),
    ] {
        std::fs::set_permissions(&library, std::fs::Permissions::from_mode(mode)).expect("chmod");
        let output = without_home(&["fetch-nvrtc"]);
        assert_eq!(code(&output), 4);
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    }
}

/// Files of users stay in a folder that they name as a cache.
#[test]
fn cleaning_leaves_what_is_not_mkernels() {
    let cache = TempDir::new().expect("temporary folder");
    let work = cache.path().join("kernels/mydir/work");
    let clean = |args: &[&str]| {
        let mut command = mkernel_gen(cache.path());
        let output = command.arg("clean").args(args).output();
        output.expect("mkernel-gen starts")
    };
    std::fs::create_dir_all(&work).expect("folder");
    for args in [&["--dry-run"][..], &[]] {
        let output = clean(args);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let left = format!(
            "not removed, since mkernel did not create it: {}\n",
            work.parent().expect("one").display()
        );
        assert!(stdout(&output).ends_with(&left), "{}", stdout(&output));
        assert!(work.is_dir());
    }
    let text = stdout(&clean(&["--dry-run"])).to_owned();
    assert!(text.starts_with("would remove 0 kernels, 0 B"), "{text}");

    file(&cache, "Cargo.toml", "");
    let output = clean(&[]);
    assert_eq!(code(&output), 4);
    expect_parts(stderr(&output), &["nothing is removed: ", "Cargo.toml"]);
}

#[test]
fn without_nvrtc_there_is_a_way_out() {
    let cache = TempDir::new().expect("temporary folder");
    for args in [&["build", "--fetch"], &["build", "--json"]] {
        let mut command = mkernel_gen(cache.path());
        command
            .env("MKERNEL_NVRTC", "/nowhere")
            .args(args)
            .args(KERNEL);
        let output = command.output().expect("mkernel-gen starts");
        assert_eq!(code(&output), 4);
        expect_parts(
            stderr(&output),
            &["run\n  mkernel-gen fetch-nvrtc && unset MKERNEL_NVRTC\n"],
        );
        if args.contains(&"--json") {
            assert_eq!(json_lines(&output)[0]["ok"], false);
        } else {
            assert!(output.stdout.is_empty());
        }
    }
}

#[test]
fn an_empty_cache_and_no_bundle() {
    let output = run(&["list"]);
    assert_eq!((code(&output), stdout(&output)), (0, "no kernels\n"));
    let output = run(&["clean", "--json"]);
    assert_eq!(json_lines(&output)[0]["kernels"], 0);
    let output = run(&["list", "/nowhere"]);
    assert_eq!(code(&output), 4);
    expect_parts(stderr(&output), &["\n    caused by: "]);
}

#[test]
#[ignore = "needs libnvrtc"]
fn kernels_are_built_once_and_bundled() {
    let cache = TempDir::new().expect("temporary folder");
    let bundle = cache.path().join("bundle").display().to_string();
    let run = |args: &[&str]| {
        let mut command = mkernel_gen(cache.path());
        command
            .env("MKERNEL_JIT", "0")
            .args(args)
            .output()
            .expect("mkernel-gen starts")
    };
    let dir = fixture("user_crate");
    let build = ["build", "--json", "--m=256", "--world=8", "--jobs=2"];
    let build = [&build[..], &["--crate", &dir, "--out", &bundle]].concat();
    for cached in [false, true] {
        let output = run(&build);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let lines = json_lines(&output);
        assert_eq!(lines.len(), 5);
        let built: Vec<_> = lines
            .iter()
            .filter(|line| line["key"].is_string())
            .collect();
        assert_eq!(built.len(), 4, "GateUp has no K");
        assert!(
            built
                .iter()
                .all(|line| line["cached"] == cached && line["registers"] == 168)
        );
    }
    let listed = |args: &[&str]| json_lines(&run(args)).len();
    assert_eq!(listed(&["list", "--json"]), 4);
    assert_eq!(listed(&["list", "--json", &bundle]), 4);

    let output = run(&["build", "--m=256", "--world=8", "--crate", &dir]);
    assert!(stderr(&output).contains("GateUp: not built, since the size of k is unknown"));
    assert_eq!(
        stdout(&output).matches("  cached  ").count(),
        4,
        "{}",
        stdout(&output)
    );

    let output = run(&["clean", "--json"]);
    assert_eq!(json_lines(&output)[0]["kernels"], 4);
    assert_eq!(listed(&["list", "--json"]), 0);
    assert_eq!(listed(&["list", "--json", &bundle]), 4);

    let output = run(&[
        "build",
        "--m=128",
        "--world=8",
        "--crate",
        &dir,
        "--out",
        &bundle,
    ]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    expect_parts(stderr(&output), &["no longer has these kernels: "]);
}

#[test]
#[ignore = "needs libnvrtc"]
fn a_bundle_replaces_no_file() {
    let cache = TempDir::new().expect("temporary folder");
    let kept = file(&cache, "file", "mine");
    let output = run(&[
        &["build", "--out", kept.to_str().expect("UTF-8")],
        &KERNEL[..],
    ]
    .concat());
    assert_eq!(code(&output), 4, "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(kept).expect("kept"), "mine");
}

/// With `m = dynamic`, each call of a program gives its rows, so the bundle has a kernel for up to the most rows.
#[test]
fn a_bundle_has_the_kernels_for_which_prepare_asks() {
    let dir = TempDir::new().expect("temporary folder");
    std::fs::create_dir(dir.path().join("src")).expect("folder");
    let source = "#[mkernel::fused_kernel(op = all_reduce, m = dynamic, n = 64, protocol = ll)]\nstruct Sum;\n";
    file(&dir, "src/lib.rs", source);
    let figures = "backend = 'host_cxx'\nsm_count = 4\n";
    let device_file = file(&dir, "device.toml", figures);
    let bundle = dir.path().join("bundle");
    succeeds(&[
        "build",
        "--world=2",
        "--m=8,..=16",
        &format!("--crate={}", dir.path().display()),
        &format!("--device-file={}", device_file.display()),
        &format!("--out={}", bundle.display()),
    ]);

    let device: Device = toml::from_str(figures).expect("figures of a device");
    let config = CollectiveConfig {
        n: Dim::Static(64),
        protocol: Some(Protocol::Ll),
        ..CollectiveConfig::new(CollectiveOp::AllReduce)
    };
    let key = |m| {
        let shape = CollectiveShape { m, n: 64 };
        let spec = SizedSpec::for_sizes(KernelConfig::new(2, config), shape);
        let plan = spec.and_then(|spec| KernelPlan::new(&spec, &device));
        Key::of_template(&KernelTemplate::of(&plan.expect("a plan"))).to_string()
    };
    let entries = Bundle::open(&bundle).expect("a bundle").entries();
    let mut found: Vec<_> = entries.iter().map(|entry| entry.key.to_string()).collect();
    let mut wanted = [8, 16].map(key).to_vec();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
}

#[test]
fn variables_that_are_not_valid_are_named() {
    for command in ["list", "clean", "doctor"] {
        let dir = TempDir::new().expect("temporary folder");
        let output = mkernel_gen(dir.path())
            .arg(command)
            .env("MKERNEL_CACHE", "maybe")
            .env("MKERNEL_JIT", "2")
            .output()
            .expect("mkernel-gen starts");
        assert_eq!(code(&output), 2, "{}", stderr(&output));
        expect_parts(
            stderr(&output),
            &[
                "MKERNEL_CACHE is \"maybe\"; it should be 0 or 1",
                "MKERNEL_JIT is \"2\"; it should be 0 or 1",
            ],
        );
    }
}

//! Bundles that are extended, merged, checked and listed. Their kernels are for simulated GPUs, which need no NVRTC.

use super::*;
use std::fs;

/// The arguments for a kernel with this number of rows.
const KERNELS: [&str; 3] = ["--op=all_reduce", "--world=2", "--n=64"];

/// A folder with a device file, whose kernels a C++ compiler compiles.
struct Folder {
    dir: TempDir,
    device: String,
}

impl Folder {
    fn new() -> Self {
        let dir = TempDir::new().expect("temporary folder");
        let device = file(&dir, "device.toml", "backend = 'host_cxx'\nsm_count = 4\n");
        let device = format!("--device-file={}", device.display());
        Self { dir, device }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = mkernel_gen(&self.dir.path().join("cache"));
        command.args(args).output().expect("mkernel-gen starts")
    }

    /// Adds kernels with these numbers of rows to a bundle.
    fn add(&self, bundle: &str, m: &str) -> Output {
        let m = format!("--m={m}");
        let output =
            self.run(&[&["bundle", "add", bundle, &self.device, &m], &KERNELS[..]].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        output
    }

    fn ids(&self, bundle: &str) -> Vec<String> {
        let output = self.run(&["bundle", "list", "--json", bundle]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let lines = json_lines(&output).into_iter();
        lines
            .map(|line| line["id"].as_str().expect("an id").to_owned())
            .collect()
    }
}

/// Changes a byte of the machine code of a kernel, and returns the kernel's name.
fn damage(bundle: &str) -> String {
    let manifest = fs::read(Path::new(bundle).join("bundle.json")).expect("a bundle");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    let kernel = &manifest["kernels"][0];
    let path = Path::new(bundle)
        .join(kernel["key"].as_str().expect("a key"))
        .join("kernel.cubin");
    let mut bytes = fs::read(&path).expect("machine code");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).expect("writable");
    kernel["id"].as_str().expect("an id").to_owned()
}

#[test]
fn kernels_are_added_and_bundles_merged() {
    let folder = Folder::new();
    let [first, second, both] = ["first", "second", "both"].map(|name| folder.path(name));
    folder.add(&first, "8");
    folder.add(&first, "16,24");
    // A kernel that is there already stays as it is.
    folder.add(&first, "8");
    assert_eq!(folder.ids(&first).len(), 3);
    folder.add(&second, "24,32");
    let output = folder.run(&["bundle", "merge", "--json", &first, &second, "--out", &both]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let line = &json_lines(&output)[0];
    assert_eq!(
        (&line["kernels"], &line["replaced"]),
        (&4.into(), &serde_json::json!([]))
    );
    assert_eq!(folder.ids(&both).len(), 4);
    let output = folder.run(&["bundle", "verify", &first, &both]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    expect_parts(stdout(&output), &[": 4 kernels, 0 damaged"]);
}

/// A kernel of the same name with another key was compiled from other headers or by another compiler.
#[test]
fn a_kernel_that_is_replaced_is_named() {
    let folder = Folder::new();
    let [old, new] = ["old", "new"].map(|name| folder.path(name));
    folder.add(&old, "8");
    let mut command = mkernel_gen(&folder.dir.path().join("other"));
    let args = ["bundle", "add", &new, &folder.device, "--m=8"];
    // Another compiler gives another key.
    let other = file(
        &folder.dir,
        "c++",
        "#!/bin/sh\n[ \"$1\" = --version ] && echo another && exit\nexec c++ \"$@\"\n",
    );
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).expect("a mode");
    let output = command
        .args(args)
        .args(KERNELS)
        .env("MKERNEL_CXX", other)
        .output();
    let output = output.expect("mkernel-gen starts");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let id = &folder.ids(&old)[0];
    let output = folder.run(&["bundle", "merge", &old, &new, "--out", &old]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(
        stderr(&output),
        format!("replaced by a newer version: {id}\n")
    );
    assert_eq!(folder.ids(&old), folder.ids(&new));
}

#[test]
fn damaged_kernels_are_shown_and_not_spread() {
    let folder = Folder::new();
    let bundle = folder.path("bundle");
    folder.add(&bundle, "8,16");
    let id = damage(&bundle);
    let wanted = "kernel.cubin does not match its checksum";
    for list in [&["list", &bundle][..], &["bundle", "list", &bundle]] {
        let output = folder.run(list);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        expect_parts(stdout(&output), &[&format!("{id}: damaged: {wanted}")]);
        assert_eq!(stdout(&output).lines().count(), 3);
    }
    let output = folder.run(&["bundle", "verify", "--json", &bundle]);
    assert_eq!(code(&output), 1);
    let lines = json_lines(&output);
    assert_eq!(
        (&lines[0]["ok"], &lines[0]["damage"]),
        (&false.into(), &wanted.into())
    );
    assert_eq!(lines[1]["ok"], true);

    let new = folder.path("new");
    let output = folder.run(&["bundle", "merge", &bundle, "--out", &new]);
    assert_eq!(code(&output), 1);
    expect_parts(
        stderr(&output),
        &[&*id, wanted, "1 damaged kernel", "mkernel-gen build"],
    );
    assert!(!Path::new(&new).exists());
    let mut command = mkernel_gen(folder.dir.path());
    let output = command
        .args(["doctor", "--json"])
        .env("MKERNEL_BUNDLE", &bundle)
        .output();
    let output = output.expect("mkernel-gen starts");
    let lines = json_lines(&output);
    let found = lines
        .iter()
        .find(|line| line["check"] == "bundles")
        .expect("a finding");
    assert_eq!(found["state"], "fault");
    assert!(
        found["found"]
            .as_str()
            .is_some_and(|text| text.contains(wanted)),
        "{found}"
    );
}

#[test]
fn folders_that_are_no_bundles_are_refused() {
    let folder = Folder::new();
    let mine = folder.path("mine");
    fs::create_dir(&mine).expect("a folder");
    fs::write(folder.path("mine/file"), "mine").expect("a file");
    for args in [
        &["bundle", "verify", "/nowhere"][..],
        &["bundle", "list", "/nowhere"],
        &["bundle", "merge", "/nowhere", "--out", &mine],
        &[
            &["bundle", "add", &mine, &folder.device, "--m=8"],
            &KERNELS[..],
        ]
        .concat(),
    ] {
        let output = folder.run(args);
        assert_eq!(code(&output), 4, "{args:?}: {}", stderr(&output));
    }
    assert_eq!(code(&folder.run(&["bundle", "merge", "--out", "x"])), 2);
    assert_eq!(
        fs::read_to_string(folder.path("mine/file")).expect("kept"),
        "mine"
    );
}

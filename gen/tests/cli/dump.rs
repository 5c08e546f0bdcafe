//! Files of kernels for other programs: rendered source with its headers, PTX, machine code and resources.

use super::*;
use std::fs;

/// The names that the `#include`s of a file give.
fn includes(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).expect("a header");
    let names = text.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix("#include")?.trim_start();
        rest.split(['"', '<', '>']).nth(1).map(str::to_owned)
    });
    names.collect()
}

/// With `-I DIR`, a compiler finds all headers that a rendered kernel includes.
#[test]
fn rendered_source_has_all_headers_that_it_includes() {
    let dir = TempDir::new().expect("temporary folder");
    let out = dir.path().join("cuda");
    let folder = out.to_str().expect("UTF-8");
    let output = succeeds(&[&["render", "--json", "--out", folder], &KERNEL[..]].concat());
    let path = json_lines(&output)[0]["path"].as_str().map(PathBuf::from);
    let mut left = vec![path.expect("a path")];
    let mut seen: Vec<PathBuf> = Vec::new();
    while let Some(path) = left.pop() {
        if seen.contains(&path) {
            continue;
        }
        for name in includes(&path) {
            let header = out.join(&name);
            assert!(header.is_file(), "{} includes {name}", path.display());
            left.push(header);
        }
        seen.push(path);
    }
    assert!(seen.len() > 20, "only {} headers", seen.len());
}

#[test]
fn dumps_need_a_folder_and_a_disassembler() {
    let output = run(&[&["build", "--dump=ptx"], &KERNEL[..]].concat());
    assert_eq!(code(&output), 2);
    expect_parts(stderr(&output), &["--out <DIR>"]);
    let cache = TempDir::new().expect("temporary folder");
    let out = cache.path().join("out").display().to_string();
    let mut command = mkernel_gen(cache.path());
    for toolkit in ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"] {
        command.env_remove(toolkit);
    }
    let command = command
        .args(["build", "--dump=sass", "--out", &out])
        .args(KERNEL);
    let output = command.env("PATH", "/nowhere").output();
    let output = output.expect("mkernel-gen starts");
    assert_eq!(code(&output), 4);
    expect_parts(stderr(&output), &["pip install nvidia-cuda-nvdisasm"]);
    assert!(!Path::new(&out).exists());
}

/// The disassembler is a program that says what it was given.
#[test]
#[ignore = "needs libnvrtc"]
fn dumps_are_written_beside_the_bundle() {
    let cache = TempDir::new().expect("temporary folder");
    let out = cache.path().join("out").display().to_string();
    let tools = TempDir::new().expect("temporary folder");
    let script = "#!/bin/sh\n[ $1 = -c ] && exec /usr/bin/head -c 4 $2\n";
    let tool = file(&tools, "nvdisasm", script);
    fs::set_permissions(tool, fs::Permissions::from_mode(0o755)).expect("a mode");
    let mut command = mkernel_gen(cache.path());
    command.env("PATH", tools.path()).env_remove("CUDA_HOME");
    command.args([
        "build",
        "--json",
        "--dump=ptx,sass,resources",
        "--out",
        &out,
    ]);
    let output = command.args(KERNEL).output().expect("mkernel-gen starts");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let line = &json_lines(&output)[0];
    let dumps = line["dumps"].as_array().expect("a list");
    let texts = dumps.iter().map(|path| {
        let path = path.as_str().expect("a path");
        (path, fs::read(path).expect("a file"))
    });
    let [(_, ptx), (_, sass), (_, used)] = &texts.collect::<Vec<_>>()[..] else {
        panic!("{line}");
    };
    assert!(String::from_utf8_lossy(ptx).contains(".target sm_90a"));
    assert_eq!(sass, b"\x7fELF");
    let used: Value = serde_json::from_slice(used).expect("JSON");
    assert_eq!(
        (&used["registers"], &used["spill_store_bytes"]),
        (&168.into(), &0.into())
    );
    assert_eq!(used["smem_bytes"], line["smem_bytes"]);
}

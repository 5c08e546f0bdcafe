//! Kernels that a run records, and bundles that are compared with them.

use super::*;

/// The kernels of a run: rows at run time, a name, a group of options, an epsilon, and several nodes.
const KERNELS: &str = "
[[kernel]]
name = 'Sum'
op = 'all_reduce'
world = 2
m = '..=6'
n = 64
norm = 'rms'
eps = 1e-5
[[kernel]]
op = 'gemm'
world = 1
m = 5
n = 64
k = 32
b_layout = 'nk'
tuning = { tile_m = 64, tile_n = 128 }
[[kernel]]
op = 'all_gather'
world = 4
nodes = 2
m = 8
n = 64
";

/// Runs `mkernel-gen` on the kernels of `files`, with a small simulated GPU as the device.
fn on_simulated_gpus(dir: &TempDir, command: &str, args: &[String]) -> Output {
    let device = file(dir, "device.toml", "backend = 'host_cxx'\nsm_count = 4\n");
    let mut mkernel_gen = mkernel_gen(dir.path());
    let mkernel_gen = mkernel_gen.arg(command).args(args);
    let output = mkernel_gen.arg(format!("--device-file={}", device.display()));
    output.output().expect("mkernel-gen starts")
}

fn record(dir: &TempDir, kernels: &Path, record: &Path) -> Output {
    let mut command = mkernel_gen(dir.path());
    let run = command.arg("run").arg(kernels);
    let run = run.args(["--device=sim", "--sms=4", "--calls=1"]);
    let output = run.env("MKERNEL_RECORD", record).output();
    output.expect("mkernel-gen starts")
}

/// The keys of kernels do not depend on names, so the recorded kernels are those of the program.
#[test]
fn a_bundle_of_recorded_kernels_has_all_kernels_of_the_program() {
    let dir = TempDir::new().expect("temporary folder");
    let kernels = file(&dir, "kernels.toml", KERNELS);
    let recorded = dir.path().join("recorded.toml");
    let mut texts = Vec::new();
    for _ in 0..2 {
        let output = record(&dir, &kernels, &recorded);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        texts.push(std::fs::read_to_string(&recorded).expect("recorded"));
    }
    assert_eq!(texts[0], texts[1], "a second run adds nothing");
    assert_eq!(texts[0].matches("[[kernel]]").count(), 3, "{}", texts[0]);
    assert!(texts[0].contains("name = \"Sum\"\n"), "{}", texts[0]);

    let bundle = dir.path().join("bundle");
    let path = |path: &Path| path.display().to_string();
    let out = format!("--out={}", path(&bundle));
    let output = on_simulated_gpus(&dir, "build", &[path(&recorded), out]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let more = file(
        &dir,
        "more.toml",
        "[[kernel]]\nop = 'all_gather'\nworld = 2\nm = 8\nn = 72\n",
    );
    let compared = format!("--bundle={}", path(&bundle));
    let check = |files: &[&PathBuf], json: bool| {
        let mut args: Vec<_> = files.iter().map(|file| path(file)).collect();
        args.push(compared.clone());
        args.extend(json.then(|| "--json".to_owned()));
        on_simulated_gpus(&dir, "check", &args)
    };
    let output = check(&[&kernels], false);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stdout(&output).matches(": in the bundle, ").count(), 3);

    let output = check(&[&kernels, &more], false);
    assert_eq!(code(&output), 1, "{}", stdout(&output));
    let text = stdout(&output);
    expect_parts(
        text,
        &["more.toml:1:1: all_gather m=8 n=72: not in the bundle, "],
    );
    expect_parts(stderr(&output), &["lacks 1 kernel,"]);
    let lines = json_lines(&check(&[&kernels, &more], true));
    let state = |i: usize| (&lines[i]["in_bundle"], &lines[i]["ok"]);
    assert_eq!(state(0), (&Value::Bool(true), &Value::Bool(true)));
    assert_eq!(state(3), (&Value::Bool(false), &Value::Bool(false)));

    let dynamic = file(
        &dir,
        "dynamic.toml",
        "[[kernel]]\nop = 'all_gather'\nworld = 2\nm = 'dynamic'\nn = 72\n",
    );
    let output = check(&[&dynamic], false);
    assert_eq!(code(&output), 1);
    let text = stdout(&output);
    expect_parts(text, &["not in the bundle, planned when m is known"]);
}

#[test]
fn a_record_that_cannot_be_written_is_an_error() {
    let dir = TempDir::new().expect("temporary folder");
    let kernels = file(&dir, "kernels.toml", KERNELS);
    let output = record(&dir, &kernels, Path::new("/nowhere/kernels.toml"));
    assert_eq!(code(&output), 4, "{}", stderr(&output));
    let text = [stdout(&output), stderr(&output)].concat();
    let wanted = "MKERNEL_RECORD is \"/nowhere/kernels.toml\"; it should be a text file that this process can write";
    assert!(text.contains(wanted), "{text}");
}

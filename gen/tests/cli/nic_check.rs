//! Checks of NICs between simulated GPUs of this process.

use super::*;

/// The checks of one process over emulated NICs that lose and reorder messages.
#[test]
fn emulated_nics_pass_all_checks() {
    let output = run(&[
        "--json",
        "nic-check",
        "--device=sim",
        "--ranks=3",
        "--puts=16",
        "--most-bytes=65536",
        "--messages=50",
        "--idle-limit-us=1000000",
        "--jitter-us=50",
        "--loss=0.1",
    ]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let lines = json_lines(&output);
    let state = |name: &str| {
        let mut lines = lines.iter();
        let line = lines.find(|line| line["check"] == name).expect(name);
        line["state"].as_str().expect("a state").to_owned()
    };
    for check in ["rails", "poison", "rates", "idle", "forks", "nofile"] {
        assert_eq!(state(check), "pass", "{lines:?}");
    }
    for check in ["gpu-memory", "memlock", "killed-rank"] {
        assert_eq!(state(check), "not_checked", "{lines:?}");
    }
    assert_eq!(state("power-off"), "manual");
    let rates = lines.iter().find(|line| line["check"] == "rates");
    let figures = rates.expect("rates")["figures"].as_array().cloned();
    // Three sizes, one and two peers, both directions, a rate and a CPU time.
    assert_eq!(figures.expect("a list").len(), 3 * 2 * 2 * 2);
}

#[test]
fn a_check_that_fails_has_a_remedy_and_an_exit_code() {
    let output = run(&[
        "nic-check",
        "--device=sim",
        "--checks=idle",
        "--idle-limit-us=0",
    ]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let text = stdout(&output);
    expect_parts(text, &["FAIL", "remedy: set the cores' governor"]);
    assert!(!text.contains("by hand"), "only the wanted check: {text}");
    expect_parts(stderr(&output), &["1 of 1 check failed"]);
}

#[test]
fn invalid_sizes_and_names_are_wrong_usage() {
    for (arg, part) in [
        ("--most-bytes=12", "multiple of 8"),
        ("--most-bytes=16777224", "8 to 16777216"),
        ("--checks=speed", "killed-rank"),
        ("--puts=7", "8.."),
        ("--queue-pairs=0", "1 to 16"),
        ("--flush=maybe", "auto, always or never"),
    ] {
        let output = run(&["nic-check", "--device=sim", arg]);
        assert_eq!(code(&output), 2, "{arg}");
        assert!(stderr(&output).contains(part), "{arg}: {}", stderr(&output));
    }
}

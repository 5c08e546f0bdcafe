//! Messages between nodes of simulated GPUs.

use super::*;

#[test]
fn messages_arrive_right_over_a_bad_network() {
    let output = succeeds(&[
        "--json",
        "fabric-test",
        "--device=sim",
        "--ranks=4",
        "--bytes=4,64",
        "--messages=8",
        "--window=4",
        "--jitter-us=50",
        "--loss=0.1",
    ]);
    let lines = json_lines(&output);
    let sizes: Vec<_> = lines.iter().map(|line| line["bytes"].clone()).collect();
    assert_eq!(sizes, [4, 64]);
    assert!(
        lines.iter().all(|line| line["wrong_words"] == 0),
        "{lines:?}"
    );
}

#[test]
fn invalid_arguments_are_refused_with_the_limit() {
    for (args, part, wanted) in [
        ("--nodes=3", "2 ranks cannot be divided into 3 nodes", 1),
        ("--bytes=6", "multiple of 4", 2),
        ("--bytes=64,0", "multiple of 4", 2),
        ("--window=0", "0 is not in 1..", 2),
    ] {
        let output = run(&["fabric-test", "--device=sim", args]);
        assert_eq!(code(&output), wanted, "{args:?}");
        assert!(
            stderr(&output).contains(part),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}

/// If the transports are built in, libraries or NICs are missing instead. `.ci/rdma` has both.
#[cfg(not(feature = "verbs"))]
#[test]
fn transports_that_are_not_built_in_name_their_feature() {
    for (transport, feature) in [("rc", "verbs"), ("efa", "efa")] {
        let flag = format!("--transport={transport}");
        let output = run(&["fabric-test", "--device=sim", &flag]);
        assert_eq!(code(&output), 1, "{transport}");
        let text = stderr(&output);
        for part in [
            format!("without transport {transport}"),
            format!("feature {feature:?}"),
        ] {
            assert!(text.contains(&part), "{part}: {text}");
        }
    }
}

#[test]
fn flags_of_another_transport_are_wrong_usage() {
    for (args, part) in [
        (
            &["--transport=rc", "--loss=0.1"][..],
            "are for --transport emulated",
        ),
        (&["--gid-index=3"], "are for --transport rc or efa"),
        (&["--nic=mlx5_0"], "are for --transport rc or efa"),
        (
            &["--transport=efa", "--traffic-class=106"],
            "are for --transport rc",
        ),
        (&["--transport=ip"], "emulated, rc, efa"),
        (&["--from-env", "--ranks=4"], "cannot be used with"),
    ] {
        let output = run(&[&["fabric-test"], args].concat());
        assert_eq!(code(&output), 2, "{args:?}");
        assert!(
            stderr(&output).contains(part),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn times_and_probabilities_out_of_range_are_wrong_usage() {
    for (flag, part) in [
        ("--latency-us=1e30", "0 to 1000000"),
        ("--jitter-us=-1", "0 to 1000000"),
        ("--loss=NaN", "from 0 to 1"),
        ("--gb-per-s=0", "above 0"),
        ("--gb-per-s=nan", "above 0"),
    ] {
        let output = run(&["fabric-test", "--device=sim", flag]);
        assert_eq!(code(&output), 2, "{flag}");
        assert!(
            stderr(&output).contains(part),
            "{flag}: {}",
            stderr(&output)
        );
    }
}

//! Tests with variables as launchers and users set them.

use super::*;

fn with<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
    |name| {
        let found = variables.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    }
}

fn launched(variables: &[(&str, &str)]) -> LaunchedRank {
    read(with(variables)).expect("a rank")
}

fn message(variables: &[(&str, &str)]) -> String {
    read(with(variables)).expect_err("a mistake").to_string()
}

fn rendezvous(variables: &[(&str, &str)]) -> RendezvousPoint {
    launched(variables).rendezvous.expect("several ranks meet")
}

#[test]
fn a_launcher_is_recognised_by_any_of_its_variables() {
    assert!(!is_any_set(with(&[])));
    assert!(is_any_set(with(&[("RANK", "0"), ("WORLD_SIZE", "2")])));
    assert!(is_any_set(with(&[("OMPI_COMM_WORLD_RANK", "0")])));
    // A batch script of Slurm has this variable too.
    assert!(!is_any_set(with(&[("SLURM_PROCID", "0")])));
}

#[test]
fn torchruns_own_port_is_left_to_it() {
    let found = launched(&[
        ("RANK", "3"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "2"),
        ("LOCAL_WORLD_SIZE", "8"),
        ("MASTER_ADDR", "node7"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("TORCHELASTIC_RUN_ID", "job1"),
    ]);
    let rendezvous = RendezvousPoint {
        host: "node7".into(),
        port: 29501,
        job: "job1".into(),
        several_hosts: false,
    };
    let expected = LaunchedRank {
        rank: 3,
        world: 8,
        local_rank: Some(2),
        rendezvous: Some(rendezvous),
    };
    assert_eq!(found, expected);
}

#[test]
fn other_launchers_ports_are_ours_and_our_own_variable_wins() {
    let own = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "4000")];
    assert_eq!(rendezvous(&own).port, 4000);
    assert_eq!(rendezvous(&own).host, "127.0.0.1");
    assert!(!rendezvous(&own).several_hosts);
    let named = [&own[..], &[("MASTER_ADDR", "node7")]].concat();
    assert!(
        rendezvous(&named).several_hosts,
        "no variable excludes several hosts"
    );
    let both = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("MASTER_PORT", "x"),
        ("MKERNEL_PORT", "5000"),
        // The port of torchrun differs from `MKERNEL_PORT`.
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ];
    assert_eq!(rendezvous(&both).port, 5000);
    assert_eq!(launched(&both).local_rank, None);
}

#[test]
fn one_rank_needs_no_network() {
    let alone = LaunchedRank {
        rank: 0,
        world: 1,
        local_rank: None,
        rendezvous: None,
    };
    assert_eq!(launched(&[("RANK", "0"), ("WORLD_SIZE", "1")]), alone);
}

/// The variables that `srun -N2 --ntasks-per-node=4` sets for the second task of the second node.
const SRUN_STEP: &[(&str, &str)] = &[
    ("SLURM_PROCID", "5"),
    ("SLURM_NTASKS", "8"),
    ("SLURM_STEP_NUM_TASKS", "8"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "1"),
    ("SLURM_STEP_TASKS_PER_NODE", "4(x2)"),
    ("SLURM_STEP_NODELIST", "gpu[007,011]"),
    ("SLURM_JOB_ID", "123456"),
    ("SLURM_STEP_ID", "2"),
];

#[test]
fn srun_says_all_that_is_needed() {
    let found = launched(SRUN_STEP);
    assert_eq!((found.rank, found.world, found.local_rank), (5, 8, Some(1)));
    let rendezvous = found.rendezvous.expect("several ranks meet");
    assert_eq!(rendezvous.host, "gpu007");
    assert!(rendezvous.several_hosts);
    assert_eq!(rendezvous.job, "123456.2");
    assert!(
        (15_000..32_768).contains(&rendezvous.port),
        "{}",
        rendezvous.port
    );
    // In this list, the first of two settings applies.
    let next = [&[("SLURM_STEP_ID", "3")], SRUN_STEP].concat();
    assert_ne!(self::rendezvous(&next).port, rendezvous.port);
    let named = [
        SRUN_STEP,
        &[("MASTER_ADDR", "10.0.0.7"), ("MASTER_PORT", "7000")],
    ]
    .concat();
    let named = self::rendezvous(&named);
    assert_eq!((named.host.as_str(), named.port), ("10.0.0.7", 7000));
}

#[test]
fn a_slurm_step_on_one_node_meets_there() {
    let step = [
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_NODEID", "0"),
        ("SLURM_STEP_TASKS_PER_NODE", "2"),
        ("SLURM_STEP_NODELIST", "gpu1"),
        ("SLURM_JOB_ID", "1"),
    ];
    let rendezvous = rendezvous(&step);
    assert_eq!(
        (rendezvous.host.as_str(), rendezvous.several_hosts),
        ("127.0.0.1", false)
    );
}

#[test]
fn mpi_launchers_are_known() {
    let open = [
        ("OMPI_COMM_WORLD_RANK", "6"),
        ("OMPI_COMM_WORLD_SIZE", "8"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ("PMIX_RANK", "6"),
        ("PMIX_NAMESPACE", "prterun-host-77@1"),
        ("MASTER_ADDR", "host"),
        ("MASTER_PORT", "5000"),
    ];
    let found = launched(&open);
    assert_eq!((found.rank, found.world, found.local_rank), (6, 8, Some(2)));
    let rendezvous = found.rendezvous.expect("several ranks meet");
    assert_eq!(rendezvous.job, "prterun-host-77@1");
    assert!(rendezvous.several_hosts);
    for names in [
        ["MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
        ["PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"],
    ] {
        let hydra = [
            ("PMI_RANK", "1"),
            ("PMI_SIZE", "2"),
            (names[0], "1"),
            (names[1], "2"),
            ("MASTER_PORT", "5000"),
        ];
        assert_eq!(launched(&hydra).local_rank, Some(1));
        assert_eq!(
            self::rendezvous(&hydra).host,
            "127.0.0.1",
            "all are on one host"
        );
    }
    let text = message(&open[..6]);
    assert!(text.contains("MASTER_ADDR is not set"), "{text}");
}

/// The innermost launcher applies. Outer launchers have started it once per host, or have started no ranks at all.
#[test]
fn launchers_that_start_launchers_are_no_contradiction() {
    let torchrun = [
        ("RANK", "5"),
        ("WORLD_SIZE", "16"),
        ("MASTER_PORT", "1"),
        ("TORCHELASTIC_RUN_ID", "x"),
        ("PMIX_RANK", "1"),
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_NUM_TASKS", "2"),
    ];
    assert_eq!(launched(&torchrun).rank, 5);
    let mpirun_in_a_batch_script = [
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "8"),
        ("MASTER_PORT", "1"),
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "8"),
    ];
    assert_eq!(launched(&mpirun_in_a_batch_script).rank, 3);
    let exported_by_a_script = [SRUN_STEP, &[("WORLD_SIZE", "8"), ("MASTER_ADDR", "h")]].concat();
    assert_eq!(launched(&exported_by_a_script).rank, 5);
}

#[test]
fn contradictions_name_all_that_matter() {
    let ranks = [SRUN_STEP, &[("RANK", "0"), ("WORLD_SIZE", "8")]].concat();
    let text = message(&ranks);
    for part in [
        "launchers disagree",
        "RANK is \"0\"",
        "WORLD_SIZE is \"8\"",
        "SLURM_PROCID is \"5\"",
        "SLURM_STEP_NUM_TASKS is \"8\"",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = message(&[SRUN_STEP, &[("WORLD_SIZE", "16")]].concat());
    assert!(
        text.contains("WORLD_SIZE is \"16\"") && !text.contains("not set"),
        "{text}"
    );
    let text = message(&[SRUN_STEP, &[("PMIX_RANK", "4")]].concat());
    assert!(text.contains("PMIX_RANK is \"4\""), "{text}");
    let text = message(&[("RANK", "2"), ("WORLD_SIZE", "2")]);
    assert!(
        text.contains("RANK is \"2\", WORLD_SIZE is \"2\""),
        "{text}"
    );
    let local = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "3"),
        ("LOCAL_WORLD_SIZE", "2"),
    ];
    let text = message(&local);
    assert!(
        text.contains("LOCAL_RANK is \"3\", LOCAL_WORLD_SIZE is \"2\""),
        "{text}"
    );
}

#[test]
fn incomplete_variables_are_named_with_the_variables_that_are_set() {
    let text = message(&[]);
    assert!(
        text.contains("RANK is not set, WORLD_SIZE is not set"),
        "{text}"
    );
    let text = message(&[("RANK", "1")]);
    assert!(
        text.contains("RANK is \"1\", WORLD_SIZE is not set"),
        "{text}"
    );
    let text = message(&[("PMI_SIZE", "2"), ("RANK", "1")]);
    for part in [
        "WORLD_SIZE is not set",
        "PMI_RANK is not set",
        "PMI_SIZE is \"2\"",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // A batch script is not a rank, and PMIx alone does not set the number of ranks.
    let text = message(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]);
    assert!(text.contains("RANK is not set"), "{text}");
    let text = message(&[("PMIX_RANK", "1")]);
    assert!(
        text.contains("PMIX_RANK is \"1\", RANK is not set, WORLD_SIZE"),
        "{text}"
    );
}

#[test]
fn mistakes_name_the_variable_and_its_value() {
    let own = |more: &[(&'static str, &'static str)]| {
        message(&[&[("RANK", "0"), ("WORLD_SIZE", "2")], more].concat())
    };
    assert!(message(&[("RANK", "0"), ("WORLD_SIZE", "eight")]).contains("WORLD_SIZE is \"eight\""));
    assert!(message(&[("WORLD_SIZE", "0"), ("RANK", "0")]).contains("0 ranks"));
    assert!(message(&[("WORLD_SIZE", "5000"), ("RANK", "0")]).contains("4096 or less"));
    assert!(own(&[]).contains("MASTER_PORT is not set"));
    assert!(own(&[("MASTER_PORT", "0")]).contains("MASTER_PORT is \"0\""));
    let text = own(&[("MASTER_ADDR", "tcp://node1"), ("MASTER_PORT", "1")]);
    let expected = "MASTER_ADDR is \"tcp://node1\"; it should be a host name";
    assert!(text.contains(expected), "{text}");
    assert!(own(&[("MKERNEL_PORT", "0")]).contains("MKERNEL_PORT is \"0\""));
    let last = [
        ("MASTER_PORT", "65535"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ];
    assert!(own(&last).contains("MKERNEL_PORT"));
}

#[test]
fn lists_of_tasks_are_read_as_slurm_writes_them() {
    assert_eq!(
        [0, 1, 2, 3].map(|node| tasks_of_node("8(x2),4", node)),
        [Some(8), Some(8), Some(4), None]
    );
    for odd in [
        "",
        "x",
        "4(x",
        "4(x99999999999)",
        "4(x4294967295),4(x4294967295)",
    ] {
        assert!(tasks_of_node(odd, u32::MAX).is_none(), "{odd}");
    }
}

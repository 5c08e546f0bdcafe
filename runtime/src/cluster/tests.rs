//! Tests of hosts, GPUs and groups of ranks.

use super::*;

#[test]
fn a_host_id_contains_the_boot_id_the_name_and_the_network_namespace() {
    let id = host_id().expect("Linux");
    let parts: Vec<&str> = id.split(' ').collect();
    assert_eq!(parts.len(), 3, "{id}");
    assert_eq!(parts[0].len(), 36, "a UUID: {id}");
    assert!(parts[2].starts_with("net:["), "{id}");
    assert!(id.len() <= crate::bootstrap::MAX_NAME_BYTES);
    assert_eq!(host_id().expect("Linux"), id);
}

#[test]
fn gpus_without_nvlink_are_refused() {
    check_link(0, 1, GpuLink::NvLink).expect("NVLink");
    let error = check_link(2, 3, GpuLink::Pcie).expect_err("PCIe alone");
    assert!(error.to_string().contains("ranks 2 and 3"), "{error}");
    let error = check_link(2, 3, GpuLink::None).expect_err("no access");
    assert!(
        matches!(
            error,
            Error::Device(DeviceError::NoPeerAccess { rank: 2, peer: 3 })
        ),
        "{error}"
    );
}

fn rank_info(bus_id: &str) -> RankInfo {
    RankInfo::new(bus_id.to_owned(), Device::h200())
}

fn ids(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn map_of(hosts: &[&str]) -> HostMap {
    let hosts: Vec<&[u8]> = hosts.iter().map(|host| host.as_bytes()).collect();
    HostMap::from_hosts(&hosts)
}

#[test]
fn ranks_of_a_host_do_not_share_a_gpu() {
    let two = map_of(&["a", "a"]);
    check_gpus(&two, &ids(&["0000:18:00.0", "0000:2A:00.0"])).expect("two GPUs");
    let error = check_gpus(&map_of(&["a", "b", "b"]), &ids(&["2", "2", "2"]));
    let error = error.expect_err("one GPU twice on the second host");
    assert!(
        matches!(
            &error,
            Error::Device(DeviceError::SameDevice {
                first: 1,
                second: 2,
                ..
            })
        ),
        "{error}"
    );
}

#[test]
fn hosts_have_equal_and_supported_numbers_of_ranks() {
    let check = |hosts: &[&str]| check_hosts(&map_of(hosts));
    check(&["a", "a"]).expect("one host");
    check(&["a", "b", "c"]).expect("three hosts of a rank each");
    assert!(matches!(
        check(&["a"; 9]),
        Err(Error::Cluster(ClusterError::World(9)))
    ));
    let error = check(&["a", "b", "a"]).expect_err("two hosts, one with fewer ranks");
    assert!(
        matches!(error, Error::Cluster(ClusterError::UnequalHosts { .. })),
        "{error}"
    );
}

#[test]
fn the_error_for_several_hosts_lists_their_ranks() {
    Cluster::one(2).ensure_one().expect("one host");
    let far = RankInfo {
        host: "far\x1b[31m".into(),
        ..rank_info("1")
    };
    let sent = [rank_info("1"), far].map(|sent| sent.to_bytes().expect("text"));
    let found = rank_table(&map_of(&["a", "b"]), &sent, "test").expect("two hosts");
    assert_eq!(found.bus_ids, ["1", "1"]);
    assert_eq!(found.cluster.name_of(1), "rank 1 on far[31m");
    assert_eq!(Cluster::one(2).name_of(1), "rank 1");
    let group = found.cluster.group(&[1, 0], (4, 7));
    let name = "rank 0 (rank 1 of the job) on far[31m";
    assert_eq!((&*group.name_of(0), &group.splits[..]), (name, &[4, 7][..]));
    let shown = [
        &Cluster::one(2),
        &group,
        &Cluster::one(9).group(&Vec::from_iter(0..9), (0, 0)),
    ];
    let shown = shown.map(Cluster::group_name);
    let names = ["group [1, 0]", "group [0, ..., 8] of 9"].map(|name| Some(name.to_owned()));
    assert_eq!((&shown[0], &shown[1..]), (&None, &names[..]));
    let inner = group.group(&[1], (0, 2));
    assert_eq!(inner.name_of(0), "rank 0 (rank 0 of the job)");
    assert_eq!(inner.splits, [4, 7, 0, 2]);
    let error = found
        .cluster
        .ensure_one()
        .expect_err("two hosts")
        .to_string();
    assert!(error.contains("rank 0 | rank 1"), "{error}");
}

#[test]
fn all_ranks_plan_for_the_slowest_gpu() {
    let mut slow = rank_info("2");
    slow.device.link_gb_s = 100.0;
    let sent = [rank_info("1"), slow].map(|sent| sent.to_bytes().expect("text"));
    let found = rank_table(&map_of(&["a", "a"]), &sent, "test").expect("two GPUs");
    assert_eq!(found.device.link_gb_s, 100.0);
}

#[test]
fn a_malformed_message_names_its_rank() {
    let mut impossible = rank_info("1");
    impossible.device.link_gb_s = -1.0;
    let impossible = impossible.to_bytes().expect("text");
    for malformed in [b"1".to_vec(), impossible] {
        let sent = [rank_info("1").to_bytes().expect("text"), malformed];
        let error = rank_table(&map_of(&["a", "b"]), &sent, "test").expect_err("malformed");
        let is_named = matches!(
            error,
            Error::Protocol {
                peer: Peer::Rank(1),
                ..
            }
        );
        assert!(is_named, "{error}");
    }
}

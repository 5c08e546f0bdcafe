//! NIC configurations, valid and invalid.

use super::{hosts, rails};
use crate::tree::NDR;
use mkernel_topology::{NicConfigIssue, Topology};

fn selected(topology: &Topology, wanted: &str) -> Vec<Vec<String>> {
    let selection = topology.select_nics(wanted).expect("all names exist");
    rails(topology, &selection)
}

#[test]
fn a_list_of_names_restricts_the_selection_by_distance() {
    let topology = Topology::read(hosts::p5en().root());
    let rails = selected(&topology, " rdmap86s0, rdmap85s0,rdmap163s0 ");
    assert_eq!(rails[0].len() + rails[1].len(), 2, "{rails:?}");
    assert_ne!(rails[0], rails[1]);
    assert_eq!(rails[7].len() + rails[6].len(), 2, "{rails:?}");
    assert!(
        rails[6..].iter().all(|names| *names == ["rdmap163s0"]),
        "shared: {rails:?}"
    );
}

#[test]
fn a_gpu_gets_its_configured_nics_and_other_gpus_avoid_them() {
    let topology = Topology::read(hosts::dgx(hosts::H100, NDR).root());
    let rails = selected(&topology, "0=mlx5_11,mlx5_2; 0000:df:00.0 = mlx5_0");
    assert_eq!(rails[0], ["mlx5_11", "mlx5_2"], "in the configured order");
    assert_eq!(rails[7], ["mlx5_0"]);
    assert_eq!(rails[1], ["mlx5_3"]);
    let selection = topology.select_nics("0=mlx5_11").expect("the NIC exists");
    assert!(selection.gpus[0].rails[0].is_configured);
    assert_eq!(
        selection.gpus[7].rails[0].shared_with,
        [0],
        "nothing else is as near"
    );
}

#[test]
fn all_errors_are_reported() {
    let tree = hosts::small();
    tree.nic("mlx5_7", "pci0000:40/0000:40:03.1/0000:42:00.0", -1, NDR);
    tree.nic("mlx5_8", "pci0000:40/0000:40:03.2/0000:43:00.0", -1, NDR);
    tree.down("mlx5_8");
    let topology = Topology::read(tree.root());
    let wanted = "eth0; 5=rocep65s0; 0=rocep65s0,rocep65s0; 0000:01:00.0=mlx5_8; 1=; 1=mlx5_7";
    let error = topology
        .select_nics(wanted)
        .expect_err("hardly any of this is right");
    let [no_nic, no_gpu, twice, down, gpu_twice, empty, one_twice] = error.issues.as_slice() else {
        panic!("{:#?}", error.issues);
    };
    assert!(matches!(no_nic, NicConfigIssue::NoNic { name, .. } if name == "eth0"));
    assert!(matches!(no_gpu, NicConfigIssue::NoGpu { name, .. } if name == "5"));
    assert!(matches!(twice, NicConfigIssue::Twice { name } if name == "rocep65s0"));
    assert!(matches!(down, NicConfigIssue::Down { name } if name == "mlx5_8"));
    assert!(matches!(gpu_twice, NicConfigIssue::Twice { name } if name == "GPU 0000:01:00.0"));
    assert!(matches!(empty, NicConfigIssue::Empty { entry } if entry == "1="));
    assert!(matches!(one_twice, NicConfigIssue::Twice { name } if name == "GPU 1"));
    let text = error.to_string();
    assert!(
        text.contains("of this host are: rocep65s0, mlx5_7, mlx5_8"),
        "{text}"
    );
    assert!(
        text.contains("of this host are: 0 (0000:01:00.0), 1 (0000:c1:00.0)"),
        "{text}"
    );
}

#[test]
fn all_gpus_need_nics_of_one_kind() {
    let topology = Topology::read(hosts::dgx(hosts::H200, hosts::ETHERNET).root());
    let error = topology
        .select_nics("0=mlx5_0;1=mlx5_1")
        .expect_err("two kinds");
    assert!(error.to_string().contains("InfiniBand, RoCE"), "{error}");
    let selection = topology.select_nics("0=mlx5_1").expect("one kind");
    assert_eq!(
        selection.kind,
        Some(mkernel_topology::NicKind::RoCE),
        "for all GPUs"
    );
}

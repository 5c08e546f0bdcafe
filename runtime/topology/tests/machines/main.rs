//! Topologies of whole machines, from sysfs trees that these tests build.

mod configured;
mod hosts;
mod odd;
mod tree;

use mkernel_topology::{BusId, Distance, GpuLink, NicSelection, Topology, describe};
use tree::{Card, NDR, Tree};

fn report(tree: &Tree) -> String {
    let topology = Topology::read(tree.root());
    describe(&topology, &automatic(&topology), None)
}

fn automatic(topology: &Topology) -> NicSelection {
    topology.select_nics("").expect("nothing is configured")
}

/// Returns the names of the NICs of each GPU.
fn rails(topology: &Topology, selection: &NicSelection) -> Vec<Vec<String>> {
    let name = |rail: &mkernel_topology::Rail| topology.nics[rail.nic].name.clone();
    let of = |choice: &mkernel_topology::GpuNics| choice.rails.iter().map(name).collect();
    selection.gpus.iter().map(of).collect()
}

#[test]
fn dgx_h100() {
    insta::assert_snapshot!(report(&hosts::dgx(hosts::H100, NDR)));
}

#[test]
fn dgx_h200_with_storage_on_ethernet() {
    insta::assert_snapshot!(report(&hosts::dgx(hosts::H200, hosts::ETHERNET)));
}

#[test]
fn p5() {
    insta::assert_snapshot!(report(&hosts::p5()));
}

#[test]
fn p5en() {
    insta::assert_snapshot!(report(&hosts::p5en()));
}

#[test]
fn a_roce_host_with_one_nic_and_two_gpus() {
    insta::assert_snapshot!(report(&hosts::small()));
}

#[test]
fn a_gpu_has_the_rate_of_its_nics_together() {
    let rates = |tree: &Tree| -> Vec<Option<f64>> {
        let topology = Topology::read(tree.root());
        let selection = automatic(&topology);
        (selection.gpus.iter())
            .map(|choice| choice.gb_per_s(&topology))
            .collect()
    };
    assert_eq!(rates(&hosts::dgx(hosts::H100, NDR)), [Some(50.0); 8]);
    assert_eq!(rates(&hosts::p5en()), [Some(50.0); 8]);
    assert_eq!(rates(&hosts::p5()), [Some(50.0); 8]);
    // Two GPUs share one NIC.
    let shared = rates(&hosts::small());
    assert_eq!(shared.len(), 2);
    assert!(
        shared.iter().all(|rate| *rate == shared[0]) && shared[0] < Some(50.0),
        "{shared:?}"
    );
}

#[test]
fn a_machine_with_nothing() {
    let tree = Tree::new(&[]);
    insta::assert_snapshot!(report(&tree));
    let nowhere = Topology::read(&tree.path("nowhere"));
    assert_eq!(nowhere, Topology::default());
}

#[test]
fn the_report_includes_the_links_that_a_driver_reports() {
    let topology = Topology::read(hosts::small().root());
    let id = |text: &str| text.parse::<BusId>().expect("an address");
    let link = |link| vec![(id("00000000:01:00.0"), id("00000000:C1:00.0"), link)];
    let text = |links| describe(&topology, &automatic(&topology), Some(&links));
    assert!(text(link(GpuLink::NvLink)).contains("links between GPUs: NVLink between all\n"));
    assert!(text(link(GpuLink::Pcie)).contains("links between GPUs: PCIe between all\n"));
    assert!(text(Vec::new()).contains("links between GPUs: unknown\n"));
    assert_eq!(topology.gpu_at(id("00000000:C1:00.0")), Some(1));
    assert_eq!(topology.gpu_at(id("0000:41:00.0")), None, "that is a NIC");
}

/// The GPU whose NIC is down gets an equally near NIC that no other GPU uses.
#[test]
fn a_port_that_is_down_is_left_out() {
    let tree = hosts::dgx(hosts::H100, NDR);
    tree.down("mlx5_3");
    let topology = Topology::read(tree.root());
    let selection = automatic(&topology);
    let rails = rails(&topology, &selection);
    assert_eq!(rails[0], ["mlx5_0"]);
    assert_eq!(rails[2], ["mlx5_4"]);
    assert_eq!(selection.gpus[1].rails[0].distance, Distance::NumaNode);
    assert!(
        selection
            .gpus
            .iter()
            .all(|choice| choice.rails.iter().all(|rail| rail.shared_with.is_empty())),
        "{rails:?}"
    );
    let note = "mlx5_3 is left out: its port is DOWN";
    assert_eq!(topology.notes, [note]);
}

/// The first GPU is equally near to both NICs, and the second GPU is near to one NIC. The first GPU must not take that NIC.
#[test]
fn no_gpus_share_a_nic_while_another_is_free() {
    let tree = Tree::new(&["0-3", "4-7"]);
    tree.gpu("pci0000:00/0000:00:01.0/0000:01:00.0", 0, hosts::H100);
    tree.nic("a0", "pci0000:10/0000:10:01.0/0000:11:00.0", 0, NDR);
    tree.nic("b0", "pci0000:20/0000:20:01.0/0000:21:00.0", 0, NDR);
    tree.gpu("pci0000:10/0000:10:02.0/0000:12:00.0", 0, hosts::H100);
    let topology = Topology::read(tree.root());
    let selection = automatic(&topology);
    assert_eq!(rails(&topology, &selection), [["b0"], ["a0"]]);
}

#[test]
fn the_fastest_of_equally_near_nics_is_selected() {
    let tree = Tree::new(&["0-7"]);
    tree.gpu("pci0000:00/0000:00:01.0/0000:01:00.0", 0, hosts::H100);
    let slow = Card {
        rate: "25 Gb/sec (1X EDR)",
        ..NDR
    };
    tree.nic("slow", "pci0000:10/0000:10:01.0/0000:11:00.0", 0, slow);
    tree.nic("fast", "pci0000:20/0000:20:01.0/0000:21:00.0", 0, NDR);
    let topology = Topology::read(tree.root());
    assert_eq!(rails(&topology, &automatic(&topology)), [["fast"]]);
}

/// Virtual functions share the port of the whole device, so they are no additional rails. In a container a virtual
/// function may be the only device.
#[test]
fn virtual_functions_are_no_additional_nics() {
    let whole = hosts::small();
    let way = "pci0000:40/0000:40:01.1/0000:41:00.1";
    whole.nic("rocep65s0v0", way, -1, hosts::ETHERNET);
    whole.virtual_function(way, "0000:41:00.0");
    let topology = Topology::read(whole.root());
    let selection = automatic(&topology);
    assert_eq!(rails(&topology, &selection), [["rocep65s0"], ["rocep65s0"]]);
    assert!(topology.notes[0].contains("a virtual function of rocep65s0"));
    let named = topology
        .select_nics("1=rocep65s0v0")
        .expect("the NIC exists");
    assert_eq!(rails(&topology, &named), [["rocep65s0"], ["rocep65s0v0"]]);

    let alone = Tree::new(&["0-3"]);
    alone.gpu("pci0000:00/0000:00:01.1/0000:01:00.0", -1, hosts::H100);
    alone.nic("rocep65s0v0", way, -1, hosts::ETHERNET);
    alone.virtual_function(way, "0000:41:00.0");
    let topology = Topology::read(alone.root());
    assert_eq!(rails(&topology, &automatic(&topology)), [["rocep65s0v0"]]);
}

#[test]
fn a_device_in_software_is_selected_if_there_is_no_other() {
    let tree = Tree::new(&["0-1", "2-3"]);
    tree.gpu("pci0000:00/0000:00:01.0/0000:01:00.0", 0, hosts::H100);
    tree.software_nic("rxe0", hosts::ETHERNET);
    let topology = Topology::read(tree.root());
    let selection = automatic(&topology);
    assert_eq!(rails(&topology, &selection), [["rxe0"]]);
    assert_eq!(selection.gpus[0].rails[0].distance, Distance::Unknown);
    assert_eq!(
        selection.gpus[0].cores,
        [0, 2],
        "first threads of both nodes"
    );
}

//! The exchanges between the programs of two machines.

use crate::verbs::Node;
use mkernel_fabric::PeerId;
use mkernel_fabric::testing::peer_connect_infos;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Exchanges bytes over the TCP connection of two machines, which also serves as a barrier.
pub fn exchange(stream: &mut TcpStream, own: &[u8]) -> Vec<u8> {
    stream.write_all(&(own.len() as u32).to_le_bytes()).unwrap();
    stream.write_all(own).unwrap();
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).unwrap();
    let mut other = vec![0; u32::from_le_bytes(bytes) as usize];
    stream.read_exact(&mut other).unwrap();
    other
}

/// Connects the programs of two machines.
pub fn other_machine(machine: usize) -> TcpStream {
    let [here, there] =
        ["HERE", "THERE"].map(|name| format!("{}:7000", std::env::var(name).unwrap()));
    let stream = if machine == 0 {
        TcpListener::bind(here).unwrap().accept().unwrap().0
    } else {
        let connect = || {
            TcpStream::connect(&there)
                .inspect_err(|_| std::thread::sleep(Duration::from_millis(100)))
        };
        std::iter::repeat_with(connect)
            .take(300)
            .find_map(Result::ok)
            .unwrap()
    };
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

/// Connects a node to the node of the other machine. The memory of both nodes becomes their region 0.
pub fn connect_to_other_machine(node: &mut Node, machine: usize, stream: &mut TcpStream) {
    let transport = &mut node.transport;
    let info = exchange(stream, &transport.connect_info(PeerId(0)).unwrap());
    let peers = peer_connect_infos(2, machine, |_, _| info.clone());
    let deadline = Instant::now() + Duration::from_secs(10);
    transport.connect(&peers, deadline).unwrap();
    let region = transport.register(node.memory.memory()).unwrap();
    let info = exchange(stream, &transport.region_info(region));
    transport.add_peer_region(PeerId(0), &info).unwrap();
}

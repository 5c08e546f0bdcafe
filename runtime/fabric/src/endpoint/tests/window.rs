//! Tests of the byte window of a peer.

use super::*;

/// Steps the endpoint until it posts nothing more. Returns the sizes of the posted puts.
fn posted(bench: &mut Bench) -> Vec<u32> {
    for _ in 0..4 {
        bench.step();
    }
    let posted = std::mem::take(&mut bench.record().posted);
    posted.iter().map(|write| write.bytes).collect()
}

#[test]
fn puts_wait_until_their_bytes_fit_into_the_window() {
    let mut bench = Bench::with_region(1 << 20);
    bench.endpoint.byte_window = 1000;
    let put = |peer, bytes| Command {
        peer,
        bytes,
        kind: COMMAND_PUT,
        ..Command::default()
    };
    for bytes in [5000, 400, 600, 0, 1] {
        bench.post(&put(3, bytes));
    }
    assert_eq!(posted(&mut bench), [5000], "a longer put goes alone");
    bench.post(&put(4, 700));
    assert_eq!(posted(&mut bench), [700], "each peer has a window");
    bench.record().events.push(Event::Sent { id: 0 });
    assert_eq!(posted(&mut bench), [400, 600, 0], "exactly the window");
    bench.record().events.push(Event::Sent { id: 1 });
    // A duplicate must not free bytes twice.
    bench.record().events.push(Event::Sent { id: 1 });
    assert_eq!(posted(&mut bench), [1]);
    assert_eq!(bench.endpoint.peers[3].bytes_in_flight, 601);
}

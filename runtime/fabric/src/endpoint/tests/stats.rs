//! Tests of the statistics of an endpoint.

use super::*;

#[test]
fn stats_count_commands_puts_and_waits_for_credits() {
    let mut bench = Bench::with_region(4096);
    // Each of four peers keeps 64 receives, so it has 56 credits.
    let steps = |bench: &mut Bench| {
        for _ in 0..5 {
            bench.step();
            let mut record = bench.record();
            let posted = std::mem::take(&mut record.posted);
            let sent = posted.iter().map(|write| Event::Sent { id: write.id });
            record.events = sent.collect();
        }
    };
    for _ in 0..60 {
        bench.post(&put_to_peers(0, 4, 0b0111, 32));
        steps(&mut bench);
    }
    let stats = bench.endpoint.stats();
    assert_eq!((stats.commands, stats.puts), (60, 4 * 56));
    assert_eq!(stats.put_bytes, 3 * 56 * 32, "the last peer gets no data");
    assert_eq!(stats.credit_stalls, 4, "a wait counts once");

    let credit = |delivered| Event::Arrived {
        peer: PeerId(2),
        immediate: Immediate::Credit { delivered }.encode(),
    };
    bench.record().events.push(credit(3));
    steps(&mut bench);
    let stats = bench.endpoint.stats();
    assert_eq!((stats.puts, stats.credit_stalls), (4 * 56 + 3, 5));
    bench.record().events.push(credit(30));
    steps(&mut bench);
    let stats = bench.endpoint.stats();
    assert_eq!((stats.puts, stats.credit_stalls), (4 * 56 + 4, 5));
}

#[test]
fn stats_count_each_arrival_once_and_dropped_writes() {
    let mut bench = Bench::new();
    let put = |sequence| Event::Arrived {
        peer: PeerId(7),
        immediate: Immediate::Put {
            channel: 0,
            sequence,
        }
        .encode(),
    };
    let dropped = |reason: &str| Event::Dropped {
        reason: reason.to_owned(),
    };
    for (sequence, arrivals) in [(0, 1), (0, 1), (3, 1), (1, 2), (3, 2), (2, 4)] {
        bench.record().events.push(put(sequence));
        bench.step();
        assert_eq!(bench.endpoint.stats().arrivals, arrivals, "{sequence}");
    }
    (bench.record().events).extend([dropped("a stranger"), dropped("another one")]);
    bench.step();
    let stats = bench.endpoint.stats();
    assert_eq!(stats.dropped_writes, 2);
    assert_eq!(stats.first_dropped.as_deref(), Some("a stranger"));
}

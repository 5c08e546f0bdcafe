//! Checks of times: messages per second, CPU time of proxies, and the latency after an idle time.

use super::job::Job;
use super::load::Load;
use super::outcome::{Figure, Outcome};

use crate::cli::format::bytes;
use mkernel::Error;
use mkernel::network::{NicProbe, ProbePut};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time without puts before a put whose latency is measured.
const GAP: Duration = Duration::from_millis(20);

/// The channel of measured puts.
const DATA: u16 = 0;

/// One measurement of puts between rank 0 and its first peers.
struct Burst {
    peers: usize,
    bytes: u32,
    puts: u32,
    /// Whether the peers put to rank 0. Otherwise rank 0 puts to its peers.
    is_to_rank_0: bool,
}

/// Messages per second by size and number of peers, and the CPU time of the proxies for a put and for an arrival.
pub fn rates(job: &Job<'_>) -> Result<Option<Outcome>, Error> {
    let most_bytes = job.load().most_bytes.min(1 << 20);
    let load = Load {
        most_bytes,
        ..job.load()
    };
    let probe = job.probe(job.transport, &load)?;
    let all = job.nodes as usize - 1;
    let counts = if all > 1 { vec![1, all] } else { vec![1] };
    let sizes = [8, 4096, 65_536, 1 << 20];
    let mut figures = Vec::new();
    for bytes in sizes.into_iter().filter(|size| *size <= most_bytes) {
        for &peers in &counts {
            for is_to_rank_0 in [false, true] {
                let puts = job.args.messages.unwrap_or(job.by_device(20_000, 200));
                // Long messages take long.
                let puts = puts.min((1 << 30) / bytes).max(10);
                let burst = Burst {
                    peers,
                    bytes,
                    puts,
                    is_to_rank_0,
                };
                figures.extend(measure(job, &probe, &burst)?);
            }
        }
    }
    let is_measured = job.ranks.rank() == 0;
    Ok(is_measured.then(|| Outcome::pass("puts of rank 0 and to rank 0").with_figures(figures)))
}

/// Makes the puts of a burst. Returns the figures of rank 0. All ranks must call this.
fn measure(job: &Job<'_>, probe: &NicProbe, burst: &Burst) -> Result<Vec<Figure>, Error> {
    let is_first = job.ranks.rank() == 0;
    let of_rank_0 = probe.peers().iter().position(|rank| *rank == 0);
    let takes_part = of_rank_0.filter(|_| (probe_number(job, probe) as usize) <= burst.peers);
    let own: Vec<u16> = match (is_first, takes_part) {
        (true, _) => (0..burst.peers as u16).collect(),
        (false, Some(peer)) => vec![peer as u16],
        (false, None) => Vec::new(),
    };
    let before: Vec<u32> = own.iter().map(|peer| probe.arrived(*peer, DATA)).collect();
    job.ranks.barrier()?;
    let (start, cpu) = (Instant::now(), probe.cpu_time()?);
    match is_first == burst.is_to_rank_0 {
        true => receive(job, probe, &own, &before, burst.puts)?,
        false => send(job, probe, &own, burst)?,
    }
    let (seconds, used) = (start.elapsed().as_secs_f64(), probe.cpu_time()? - cpu);
    job.ranks.barrier()?;
    if !is_first {
        return Ok(Vec::new());
    }
    let count = f64::from(burst.puts) * burst.peers as f64;
    let what = format!(
        "{} {} {}",
        bytes(burst.bytes.into()),
        if burst.is_to_rank_0 { "from" } else { "to" },
        crate::cli::format::count(burst.peers, "peer")
    );
    let figure = |value: f64, unit: &str| Figure {
        name: what.clone(),
        value,
        unit: unit.to_owned(),
    };
    let each = match burst.is_to_rank_0 {
        true => "CPU ns of the proxy for an arrival",
        false => "CPU ns of the proxy for a put",
    };
    Ok(vec![
        figure(count / seconds, "messages/s"),
        figure(used.as_secs_f64() * 1e9 / count, each),
    ])
}

/// The number of this rank among the peers of rank 0, from 1 on. Rank 0 has 0.
fn probe_number(job: &Job<'_>, probe: &NicProbe) -> u32 {
    let of_rank_0 = probe.peers().iter().position(|rank| *rank == 0);
    match (job.ranks.rank(), of_rank_0) {
        (0, _) | (_, None) => 0,
        (_, Some(peer)) => probe.own_index(peer as u16) + 1,
    }
}

fn send(job: &Job<'_>, probe: &NicProbe, peers: &[u16], burst: &Burst) -> Result<(), Error> {
    let mut last = None;
    for _ in 0..burst.puts {
        for &peer in peers {
            last = Some(probe.put(&ProbePut {
                peer,
                channel: DATA,
                bytes: burst.bytes,
                ..ProbePut::default()
            })?);
        }
    }
    wait(job, probe, "puts have not completed", || {
        last.is_none_or(|put| probe.is_sent(put))
    })
}

fn receive(
    job: &Job<'_>,
    probe: &NicProbe,
    peers: &[u16],
    before: &[u32],
    puts: u32,
) -> Result<(), Error> {
    for (&peer, before) in peers.iter().zip(before) {
        let all = || probe.arrived(peer, DATA).wrapping_sub(*before) >= puts;
        wait(job, probe, "puts have not arrived", all)?;
    }
    Ok(())
}

fn wait(
    job: &Job<'_>,
    probe: &NicProbe,
    what: &str,
    is_over: impl Fn() -> bool,
) -> Result<(), Error> {
    let start = Instant::now();
    while !is_over() {
        probe.check()?;
        if start.elapsed() > job.ranks.timeout() {
            return Err(job.late(what));
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// The time of a put and its answer, right after another and after an idle time.
pub fn idle(job: &Job<'_>) -> Result<Option<Outcome>, Error> {
    let load = Load {
        most_bytes: 8,
        ..job.load()
    };
    let probe = job.probe(job.transport, &load)?;
    let (busy, idle) = (job.by_device(1000, 50), job.by_device(100, 10));
    let number = probe_number(job, &probe);
    let mut medians = None;
    job.ranks.barrier()?;
    if job.ranks.rank() == 0 {
        let mut arrived = 0;
        let mut round_trips = |count, gap: Duration| -> Result<f64, Error> {
            let mut times = Vec::new();
            for _ in 0..count {
                sleep(gap);
                let start = Instant::now();
                probe.put(&ping(0))?;
                arrived += 1;
                let is_back = || probe.arrived(0, DATA) == arrived;
                wait(job, &probe, "an answer is missing", is_back)?;
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
            times.sort_by(f64::total_cmp);
            Ok(times[times.len() / 2])
        };
        medians = Some((round_trips(busy, Duration::ZERO)?, round_trips(idle, GAP)?));
    } else if number == 1 {
        let peer = probe.peers().iter().position(|rank| *rank == 0);
        let peer = peer.unwrap_or_default() as u16;
        for count in 1..=busy + idle {
            let has_come = || probe.arrived(peer, DATA) == count;
            wait(job, &probe, "a put is missing", has_come)?;
            probe.put(&ping(peer))?;
        }
    }
    job.ranks.barrier()?;
    Ok(medians.map(|(busy, idle)| judged(busy, idle, job.args.idle_limit_us)))
}

fn ping(peer: u16) -> ProbePut {
    ProbePut {
        peer,
        channel: DATA,
        bytes: 8,
        ..ProbePut::default()
    }
}

fn judged(busy: f64, idle: f64, limit_us: u32) -> Outcome {
    let figure = |name: &str, value| Figure {
        name: name.to_owned(),
        value,
        unit: "µs".to_owned(),
    };
    let found = format!(
        "a put and its answer take {busy:.1} µs, and {idle:.1} µs after {} ms without puts",
        GAP.as_millis()
    );
    let outcome = match idle <= f64::from(limit_us) {
        true => Outcome::pass(found),
        false => Outcome::fail(
            format!("{found}, more than {limit_us} µs"),
            "set the cores' governor to performance and forbid deep C-states (`cpupower idle-set --disable-by-latency 10`), or \
             set MKERNEL_PROXY_CORES to cores that nothing else uses; --idle-limit-us sets the limit",
        ),
    };
    outcome.with_figures(vec![
        figure("round trip", busy),
        figure("round trip after idle time", idle),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::nic_check::outcome::State;

    #[test]
    fn a_round_trip_after_idle_time_has_a_limit() {
        assert_eq!(judged(5.0, 90.0, 100).state, State::Pass);
        let late = judged(5.0, 900.0, 100);
        assert_eq!(late.state, State::Fail);
        assert!(late.found.contains("900.0 µs") && late.found.contains("100 µs"));
    }
}
